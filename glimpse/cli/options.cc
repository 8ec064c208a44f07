#include "glimpse/cli/options.h"

#include <fmt/format.h>

#include <array>

#include "glimpse/base/error.h"
#include "glimpse/engine/lossless.h"

namespace glimpse::cli {
namespace {

using A = Arguments;

constexpr std::uint32_t kEval = kLogits | kPerplexity | kSets;
constexpr std::uint32_t kBenchModel = kBenchDecode | kBenchPrefill;
constexpr std::uint32_t kBench = kBenchModel | kBenchAttention;
constexpr std::uint32_t kEngine = kRun | kEval | kBenchModel;
constexpr std::uint32_t kPolicy = kRun | kPlan | kEval;

constexpr double kMostTokens = 1 << 24;
constexpr double kMostPosition = 1 << 30;
constexpr double kMostSeed = 4294967295.0;

constexpr std::string_view kModel = "Model and machine", kText = "Prompt and answer", kSampling = "Sampling",
                           kAttention = "Attention", kOutput = "Output", kMeasure = "Measurement";

const std::array kOptions{
    Option{"-m,--model", "FILE", &A::model, {}, "", kModel, "the model, a GGUF file", kEngine | kPlan},
    Option{"-c,--ctx-size,--ctx",
           "N",
           &A::context,
           {0, kMostTokens},
           "0",
           kModel,
           "tokens that a sequence may have, prompt and answer; 0: as many as the model was made for",
           kRun | kLogits | kSets | kBenchModel},
    Option{"-c,--ctx-size,--ctx",
           "N",
           &A::window,
           {4, kMostTokens},
           "2048",
           kMeasure,
           "tokens of a window; the second half of each is scored",
           kPerplexity},
    Option{"-t,--threads", "N", &A::threads, {0, 512}, "0", kModel, "threads; 0: one per core", kEngine | kBench},
    Option{"--device", "NAME", &A::device, {}, "cpu", kModel, "where it runs: cpu", kEngine},
    Option{"--kv-type",
           "TYPE",
           &A::kv_type,
           {},
           "bf16",
           kModel,
           "type of the KV cache: f32, f16, bf16 or q8_0",
           kEngine | kBenchAttention},
    Option{"--kv-tier-dir",
           "DIR",
           &A::tier_folder,
           {},
           "/tmp",
           kModel,
           "folder of the temporary file where methods with a host tier keep cold pages",
           kEngine},
    Option{"--prefill-chunk",
           "N",
           &A::prefill_chunk,
           {1, 65536},
           "512",
           kModel,
           "prompt tokens of one forward pass",
           kEngine},

    Option{"-p,--prompt",
           "TEXT",
           &A::prompt,
           {},
           "",
           kText,
           "the prompt; with -f it follows the file after an empty line",
           kRun},
    Option{"-f,--file", "FILE", &A::file, {}, "", kText, "a file with the prompt or document; -: standard input", kRun},
    Option{"-f,--file", "FILE", &A::file, {}, "", kMeasure, "the text; -: standard input", kEval | kBenchModel},
    Option{"--system", "TEXT", &A::system, {}, "", kText, "the system message; the template's own without it", kRun},
    Option{"--raw", "", &A::raw, {}, "", kText, "the text as it is, without the model's chat template", kRun},
    Option{"-n,--predict,--n-predict",
           "N",
           &A::predict,
           {-1, kMostTokens},
           "-1",
           kText,
           "tokens to generate at most; -1: until the model ends or the context is full",
           kRun},

    Option{"--session",
           "FILE",
           &A::session,
           {},
           "",
           kText,
           "keep the prefilled prompt in FILE: what it has of a later prompt is not prefilled again",
           kRun},

    Option{"-i,--interactive",
           "",
           &A::interactive,
           {},
           "",
           kText,
           "several questions over one prefill, one a line of standard input; /help lists commands",
           kRun},

    Option{"--temp", "T", &A::temperature, {0, 100}, "0", kSampling, "temperature; 0: greedy", kRun},
    Option{"--top-k", "N", &A::top_k, {0, kMostTokens}, "40", kSampling, "sample from the N likeliest; 0: off", kRun},
    Option{"--top-p", "P", &A::top_p, {0, 1}, "0.95", kSampling, "sample from the likeliest of mass P; 1: off", kRun},
    Option{
        "--min-p", "P", &A::min_p, {0, 1}, "0.05", kSampling, "drop tokens below P times the likeliest; 0: off", kRun},
    Option{"--repeat-penalty",
           "X",
           &A::repeat_penalty,
           {0.01, 100},
           "1",
           kSampling,
           "divides the logits of recent tokens; 1: off",
           kRun},
    Option{"--repeat-last-n",
           "N",
           &A::repeat_last_n,
           {0, kMostTokens},
           "64",
           kSampling,
           "tokens that the penalties look back on; 0: none",
           kRun},
    Option{"--frequency-penalty",
           "X",
           &A::frequency_penalty,
           {-100, 100},
           "0",
           kSampling,
           "subtracted for each recent occurrence",
           kRun},
    Option{"--presence-penalty",
           "X",
           &A::presence_penalty,
           {-100, 100},
           "0",
           kSampling,
           "subtracted for tokens that occurred",
           kRun},
    Option{"-s,--seed",
           "N",
           &A::seed,
           {0, kMostSeed},
           "0",
           kSampling,
           "random seed; the same seed, the same answer",
           kRun},

    Option{"--attn",
           "POLICY",
           &A::policy,
           {},
           "full",
           kAttention,
           "the attention policy; 'glimpse plan --list' shows all",
           kPolicy},
    Option{"--attn-budget",
           "B",
           &A::budget,
           {},
           "",
           kAttention,
           "what a step may read: tokens (1024), a share (10%), p=0.99, coverage=0.98 or tau=1e-4",
           kPolicy},
    Option{"--attn-block", "N", &A::block, {1, 65536}, "", kAttention, "select blocks of N tokens; 1: tokens", kPolicy},
    Option{
        "--attn-sink", "N", &A::sink, {0, kMostPosition}, "", kAttention, "first tokens that are always read", kPolicy},
    Option{"--attn-local",
           "N",
           &A::local,
           {0, kMostPosition},
           "",
           kAttention,
           "last tokens that are always read",
           kPolicy},
    Option{"--attn-opt",
           "KEY=VALUE",
           &A::policy_options,
           {},
           "",
           kAttention,
           "an option of the policy's own; several by repeating it or with commas",
           kPolicy},
    Option{"--attn-min-ctx",
           "N",
           &A::min_context,
           {0, kMostPosition},
           "0",
           kAttention,
           "dense while the context is shorter than N",
           kPolicy},
    Option{"--attn-plan",
           "FILE",
           &A::plan_file,
           {},
           "",
           kAttention,
           "run this plan (JSON of 'glimpse plan --json'), not a policy",
           kPolicy},

    Option{"--attn-profile",
           "FILE",
           &A::profile,
           {},
           "",
           kAttention,
           "what calibration found out about the model (JSON); policies that use one say so in 'glimpse plan --list'",
           kPolicy | kBenchDecode},

    Option{"--correct",
           "T",
           &A::correct,
           {0, kMostTokens},
           "0",
           kAttention,
           "every T generated tokens a dense pass replaces their K and V (cache correction); 0: never",
           kRun},

    Option{"--attn-audit",
           "N",
           &A::audit,
           {0, kMostTokens},
           "0",
           kAttention,
           "every N generated tokens the softmax mass that each head's set captures is measured, at its cost; 0: never",
           kRun},

    Option{
        "--lossless",
        "[T]",
        &A::lossless,
        {0, engine::kMostDrafts},
        "",
        kAttention,
        "the answer of dense attention: T tokens are drafted by the method, then verified by one dense pass; without "
        "T, or 0: as many as should pay, and as can be verified bit for bit (more than 4, or a weight that ggml "
        "repacked, may differ in near ties)",
        kRun},

    Option{"--json", "", &A::json, {}, "", kOutput, "print one JSON object", kRun | kPlan | kPerplexity | kSets},
    Option{"--trace",
           "FILE",
           &A::trace,
           {},
           "",
           kOutput,
           "write what each (step, layer, KV head) reads, for 'glimpse inspect'",
           kRun},
    Option{
        "-q,--quiet", "", &A::quiet, {}, "", kOutput, "no statistics, progress or warnings on standard error", kEngine},
    Option{"-v,--verbose", "", &A::verbose, {}, "", kOutput, "notes on standard error", kEngine},
    Option{"--list", "", &A::list, {}, "", kOutput, "the policies and their options", kPlan},

    Option{
        "file", "FILE", &A::subject, {}, "", kOutput, "a model (GGUF), a plan or profile (JSON), or a trace", kInspect},
    Option{"--html", "FILE", &A::html, {}, "", kOutput, "write the trace as a page for a browser", kInspect},

    Option{"--tokens", "N", &A::tokens, {1, kMostTokens}, "", kMeasure, "only the first N tokens of the text", kLogits},
    Option{"--prefill",
           "N",
           &A::prefill,
           {0, kMostTokens},
           "",
           kMeasure,
           "prefill the first N tokens (of each window) and decode the rest by the plan; all without it",
           kLogits | kPerplexity},
    Option{"--chunks", "N", &A::chunks, {1, kMostTokens}, "", kMeasure, "score only the first N windows", kPerplexity},
    Option{"--prompt",
           "N",
           &A::text_prompt,
           {1, kMostTokens},
           "",
           kMeasure,
           "tokens of the text that are the prompt; all but the steps without it",
           kSets},
    Option{
        "--steps", "N", &A::text_steps, {1, kMostTokens}, "64", kMeasure, "tokens decoded after it by the plan", kSets},
    Option{"-o,--output", "FILE", &A::output, {}, "", kOutput, "the trace to write; none without it", kSets},
    Option{"-o,--output",
           "FILE",
           &A::output,
           {},
           "",
           kOutput,
           "the .npy file to write: float32 [tokens, vocabulary]",
           kLogits},

    Option{"--depth", "LIST", &A::depths, {}, "0,8192", kMeasure, "tokens in the cache before decoding", kBenchDecode},
    Option{"--length", "LIST", &A::depths, {}, "512,2048", kMeasure, "tokens of the prompt", kBenchPrefill},
    Option{"--depth", "LIST", &A::depths, {}, "8192,32768", kMeasure, "tokens in the cache", kBenchAttention},
    Option{"--arms",
           "LIST",
           &A::arms,
           {},
           "full,tidal:512",
           kMeasure,
           "policies to compare, POLICY[:BUDGET], as in full,tidal:512,quest:10%,min=128",
           kBenchDecode},
    Option{"-n,--predict,--n-predict",
           "N",
           &A::bench_tokens,
           {16, 65536},
           "40",
           kMeasure,
           "tokens to decode; the first 8 are not timed",
           kBenchDecode},
    Option{"-r,--repetitions", "N", &A::repetitions, {1, 10000}, "5", kMeasure, "measurements of each arm", kBench},
    Option{"--kv-heads", "N", &A::kv_heads, {1, 128}, "3", kMeasure, "KV heads", kBenchAttention},
    Option{"--group", "N", &A::group, {1, 16}, "3", kMeasure, "query heads per KV head", kBenchAttention},
    Option{
        "--head-dim", "N", &A::head_dim, {8, 512}, "64", kMeasure, "head dimension, a multiple of 8", kBenchAttention},
    Option{"--rows",
           "N",
           &A::rows,
           {1, kMostTokens},
           "2048",
           kMeasure,
           "rows that the gathered pass reads a head",
           kBenchAttention},
    Option{"-o,--output", "FORMAT", &A::format, {}, "md", kOutput, "md, csv or json", kBench},
};

constexpr std::array kCommands{
    Command{"run", kRun, "answer a prompt"},
    Command{"plan", kPlan, "show what a policy makes of a model, as a table or as JSON"},
    Command{"inspect", kInspect, "show what a model, plan, profile or trace file is"},
    Command{"eval logits", kLogits, "write the logits of every position of a text"},
    Command{"eval perplexity", kPerplexity, "perplexity of a text, as llama.cpp computes it"},
    Command{"eval sets", kSets, "what a method reads of a text, and the softmax mass that it captures"},
    Command{"bench decode", kBenchDecode, "time of one decoded token, by policy and depth"},
    Command{"bench prefill", kBenchPrefill, "prompt tokens per second, by length"},
    Command{"bench attention", kBenchAttention, "the attention kernels alone, against the memory's read bandwidth"},
};

constexpr std::array<std::string_view, 9> kLaterCommands{"calibrate",      "serve",         "pull",
                                                         "eval needle",    "eval passkey",  "eval ruler",
                                                         "eval longbench", "eval fidelity", "bench select"};

std::string number(double value) {
  return fmt::format("{:.10g}", value);
}

}  // namespace

std::span<const Option> options() {
  return kOptions;
}
std::span<const Command> commands() {
  return kCommands;
}
std::span<const std::string_view> later_commands() {
  return kLaterCommands;
}

std::string_view long_name(std::string_view flags) {
  const std::size_t start = flags.find("--");
  if (start == std::string_view::npos) return flags;
  return flags.substr(start, flags.find(',', start) - start);
}

std::string environment_name(std::string_view flags) {
  std::string name = "GLIMPSE_ARG_";
  for (const char c : long_name(flags).substr(2)) {
    name += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  }
  return name;
}

std::string describe(const Option& option) {
  std::string facts;
  if (option.range.low != option.range.high) {
    facts = fmt::format("{} to {}", number(option.range.low), number(option.range.high));
  }
  if (!option.default_value.empty()) {
    facts += fmt::format("{}default {}", facts.empty() ? "" : ", ", option.default_value);
  }
  return facts.empty() ? std::string(option.help) : fmt::format("{} ({})", option.help, facts);
}

}  // namespace glimpse::cli
