#include "glimpse/cli/habits.h"

#include <algorithm>
#include <array>

namespace glimpse::cli {
namespace {

constexpr std::array kHabits{
    Habit{"-ngl,--gpu-layers,--n-gpu-layers,-sm,--split-mode,-ts,--tensor-split,-mg,--main-gpu,-ot,--override-tensor,"
          "-cmoe,--cpu-moe,-ncmoe,--n-cpu-moe,-nkvo,--no-kv-offload,-kvo,--kv-offload,-dev,--list-devices",
          "glimpse runs on the CPU and offloads nothing to a GPU; leave it out"},
    Habit{"-fa,--flash-attn,-nfa,--no-flash-attn",
          "attention is always fused and never stores a matrix of scores; leave it out"},
    Habit{"-c,--ctx-size,--ctx", "this command has no context to set; leave it out"},
    Habit{"-b,--batch-size,-ub,--ubatch-size",
          "the prompt tokens of one forward pass are --prefill-chunk N (run, eval, bench decode, bench prefill)"},
    Habit{"--mlock", "weights stay in the page cache of the system and are not locked; leave it out"},
    Habit{"--mmap,--no-mmap,-dio,--direct-io", "weights are always mapped from the file; leave it out"},
    Habit{"--numa,-C,--cpu-mask,-Cr,--cpu-range,--cpu-strict,-Cb,--prio,--poll",
          "threads are placed by the system; choose processors with taskset and their number with -t N"},
    Habit{"-tb,--threads-batch", "-t N sets the threads of prefill and decoding"},
    Habit{"-cnv,--conversation,-st,--single-turn,-ins,--instruct,-if,--interactive-first,-mli,--multiline-input",
          "'glimpse run' answers one prompt through the chat template; -i asks several questions, one a line"},
    Habit{"-no-cnv,--no-conversation", "give --raw to run the text without the model's chat template"},
    Habit{"--jinja,--no-jinja", "the model's own chat template is always run; --raw leaves it out"},
    Habit{"--chat-template,--chat-template-file,--chat-template-kwargs,--reasoning-format,--reasoning-budget",
          "the chat template is the model's own; --raw runs a text that you have formatted yourself"},
    Habit{"-hf,-hfr,--hf-repo,-hff,--hf-file,-hft,--hf-token,-mu,--model-url,-dr,--docker-repo,--offline",
          "glimpse downloads nothing; fetch a GGUF file and give it with -m FILE"},
    Habit{"--color,-co,--log-colors", "output has no colours; leave it out"},
    Habit{"-e,--escape,--no-escape",
          "texts are taken as they are; in bash $'one\\ntwo' has a line end, and -f FILE reads a text from a file"},
    Habit{"-sys,--system-prompt", "give the system message with --system TEXT"},
    Habit{"-sysf,--system-prompt-file", "give the system message with --system \"$(cat FILE)\""},
    Habit{"-bf,--binary-file,--in-file", "give the file with -f FILE; -f may be repeated"},
    Habit{"--temperature", "give --temp T"},
    Habit{"-ctk,--cache-type-k,-ctv,--cache-type-v,--kv-unified", "--kv-type TYPE sets the type of K and V"},
    Habit{"--keep,--context-shift,--no-context-shift,-gan,--grp-attn-n,-gaw,--grp-attn-w",
          "the context is not shifted: an answer ends where the context is full; --attn streaming forgets old tokens"},
    Habit{"--prompt-cache,--prompt-cache-all,--prompt-cache-ro,--slot-save-path,--cache-prompt,--no-cache-prompt",
          "--session FILE keeps the prefilled prompt"},
    Habit{"-jf,--json-schema-file", "give the schema itself with --json-schema SCHEMA"},
    Habit{"--samplers,--sampling-seq,--sampler-seq,--mirostat,--mirostat-lr,--mirostat-ent,--typical,--xtc-probability,"
          "--xtc-threshold,--dry-multiplier,--dry-base,--dry-allowed-length,--dynatemp-range,--dynatemp-exp,"
          "--top-nsigma,--top-n-sigma",
          "samplers are the penalties, --top-k, --top-p, --min-p and --temp, in this order"},
    Habit{"-r,--reverse-prompt", "give the text that ends an answer with --stop TEXT; it is not shown"},
    Habit{"--rope-scaling,--rope-scale,--rope-freq-base,--rope-freq-scale,--yarn-orig-ctx,--yarn-ext-factor,"
          "--yarn-attn-factor,--yarn-beta-slow,--yarn-beta-fast",
          "RoPE and its scaling are those of the model file; leave it out"},
    Habit{"--lora,--lora-scaled,--control-vector,--override-kv",
          "the model is run as its file is; merge an adapter into the GGUF file first"},
    Habit{"-md,--model-draft,--spec-draft-model,--draft,--draft-max,--draft-n,--draft-min,--draft-p-min",
          "--lossless drafts with the sparse method of --attn and needs no second model"},
    Habit{"--mmproj,-mm,-mmu,--mmproj-url,--image,--audio", "models of images and sound are not run; leave it out"},
    Habit{"-np,--parallel,--host,--port,--api-key,-a,--alias", "this command is no server; 'glimpse serve' is one"},
    Habit{"-to,--timeout", "'glimpse serve' has --header-timeout, --body-timeout, --idle-timeout and --write-timeout"},
    Habit{"-cb,--cont-batching,--slots,--no-slots,--metrics,--props,--webui,--no-webui",
          "'glimpse serve' batches requests, and has /metrics, /props and /v1/requests, but no page; leave it out"},
    Habit{"--embedding,--embeddings,--reranking", "only text is generated, no embedding or ranking; leave it out"},
    Habit{"--no-display-prompt,--verbose-prompt,--special,-sp,--display-prompt,--simple-io",
          "standard output is the answer and nothing else; leave it out"},
    Habit{"--warmup,--no-warmup,--perf,--no-perf", "there is no warm-up run, and -q leaves the statistics out"},
    Habit{"-lv,--log-verbosity,--verbosity,--log-disable,--log-file,--log-prefix,--log-timestamps",
          "notes go to standard error: -v for more of them, -q for none"},
    Habit{"-o,--output,--output-file", "this command writes to standard output; redirect it with > FILE"},
};

bool has_flag(std::string_view flags, std::string_view flag) {
  while (!flags.empty()) {
    const std::size_t comma = std::min(flags.find(','), flags.size());
    if (flags.substr(0, comma) == flag) return true;
    flags.remove_prefix(std::min(comma + 1, flags.size()));
  }
  return false;
}

}  // namespace

std::span<const Habit> habits() {
  return kHabits;
}

const Habit* find_habit(std::string_view flag) {
  const auto found =
      std::find_if(kHabits.begin(), kHabits.end(), [&](const Habit& habit) { return has_flag(habit.flags, flag); });
  return found == kHabits.end() ? nullptr : &*found;
}

}  // namespace glimpse::cli
