// How near a method's answers are to dense attention's on a real text, teacher-forced: mean KL(dense || method), top-1
// agreement, perplexity, the share of the cache read, and on a sample of steps the softmax mass that the sets capture
// and their recall of the true best tokens. The answer comes first: `full` forked must be dense bit for bit.
//
//   fidelity_bench MODEL TEXT [--prompt 6000] [--steps 512] [--budgets 256,512,1024] [--methods all] [--variants]
//                  [--sample 64] [--skip 0] [--sparse-prefill 10%] [--profile FILE] [--kv bf16] [--threads N]
//                  [--json FILE]
//
// A method is NAME[/KEY=VALUE...]. --sparse-prefill gives all sparse prefills one budget, so that one prompt serves
// all decode budgets; without it each plan's prompt is prefilled as `glimpse run` would.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "bench/bench_report.h"
#include "bench/method_arms.h"
#include "bench/prefilled_prompt.h"
#include "bench/statistics.h"
#include "glimpse/base/error.h"
#include "glimpse/cli/setup.h"
#include "glimpse/evaluate/perplexity.h"
#include "glimpse/evaluate/set_quality.h"

namespace glimpse::bench {
namespace {

using Clock = std::chrono::steady_clock;
using evaluate::KeyHistory;
using evaluate::SetQuality;
using evaluate::SetSample;

struct Options {
  std::string model, text, kv = "bf16", profile, sparse_prefill, json;
  std::vector<std::string> budgets{"256", "512", "1024"}, methods{"all"};
  std::int64_t prompt = 6000, steps = 512, sample = 64, skip = 0;
  int threads = 0;
  bool variants = false;
};

struct Row {
  double kl = 0, kl_squares = 0, kl_most = 0, nll = 0, ms_per_step = 0;  ///< sums, then means
  std::int64_t agreed = 0;
  double kept_ratio = 1;
  std::string prefill;
  SetQuality sets;
};

/// The text's tokens, what dense attention says to each decoded one, and the keys of the prompt.
class Fidelity {
 public:
  Fidelity(engine::Engine& engine, const Options& options, std::vector<Token> tokens, std::span<const Arm> arms,
           PrefilledPrompt::OnPrefill on_prefill)
      : options_(options),
        tokens_(std::move(tokens)),
        shape_(engine.shape()),
        vocabulary_(static_cast<std::size_t>(engine.tokenizer().size())),
        prompt_(engine, {tokens_.begin(), tokens_.begin() + options.prompt}, arms, std::move(on_prefill)),
        prompt_keys_(shape_) {}

  /// Decodes densely and keeps the logits.
  void run_dense(const Arm& full) {
    PrefilledPrompt::Start start = prompt_.start(full);
    dense_.reserve(vocabulary_ * static_cast<std::size_t>(options_.steps));
    for (std::int64_t step = 0; step < options_.steps; ++step) {
      const auto logits = start.sequence.decode(fed(step));
      dense_.insert(dense_.end(), logits.begin(), logits.end());
    }
    if (options_.sample > 0) prompt_keys_.follow(prompt_.dense());
  }

  Row run(const Arm& arm) {
    PrefilledPrompt::Start start = prompt_.start(arm);
    start.sequence.reset_stats();
    Row row;
    row.prefill = start.kind;
    const bool samples = options_.sample > 0;
    KeyHistory keys(shape_);
    if (samples) {
      keys = prompt_keys_;
      if (start.kind != "dense") keys.replace(start.sequence);
    }
    SetSample sample;
    double decode_s = 0;
    for (std::int64_t step = 0; step < options_.steps; ++step) {
      const bool sampled = samples && step % options_.sample == options_.sample - 1;
      if (sampled) sample.watch(start.sequence);
      const auto begin = Clock::now();
      const auto logits = start.sequence.decode(fed(step));
      decode_s += std::chrono::duration<double>(Clock::now() - begin).count();
      add(row, step, logits);
      if (samples) keys.follow(start.sequence);
      if (!sampled) continue;
      SetSample::stop(start.sequence);
      row.sets += sample.take(keys, shape_.head_dim);
    }
    const auto steps = static_cast<double>(options_.steps);
    row.kl /= steps;
    row.kl_squares /= steps;
    row.nll /= steps;
    row.ms_per_step = 1e3 * decode_s / steps;
    row.kept_ratio = start.sequence.stats().kept_ratio();
    return row;
  }

 private:
  Token fed(std::int64_t step) const { return tokens_[static_cast<std::size_t>(options_.prompt + step)]; }

  void add(Row& row, std::int64_t step, std::span<const float> logits) const {
    const std::span<const float> dense =
        std::span(dense_).subspan(vocabulary_ * static_cast<std::size_t>(step), vocabulary_);
    const double kl = divergence(dense, logits);
    if (!std::isfinite(kl)) throw InternalError(fmt::format("the divergence at step {} is {}", step, kl));
    row.kl += kl;
    row.kl_squares += kl * kl;
    row.kl_most = std::max(row.kl_most, kl);
    row.agreed += arg_max(dense) == arg_max(logits);
    row.nll += evaluate::token_nll(logits, fed(step + 1));
  }

  const Options& options_;
  std::vector<Token> tokens_;  ///< [prompt + steps + 1]
  plan::ModelShape shape_;
  std::size_t vocabulary_;
  PrefilledPrompt prompt_;
  KeyHistory prompt_keys_;
  std::vector<float> dense_;  ///< [steps, vocabulary]
};

Json json_of(const Arm& arm, const Row& row, std::int64_t steps) {
  Json json{{"method", arm.method},
            {"budget", arm.budget},
            {"prefill", row.prefill},
            {"kl", row.kl},
            {"kl_error", std::sqrt(std::max(0.0, row.kl_squares - row.kl * row.kl) / static_cast<double>(steps))},
            {"kl_most", row.kl_most},
            {"top1_agreement", static_cast<double>(row.agreed) / static_cast<double>(steps)},
            {"perplexity", std::exp(row.nll)},
            {"kept_ratio", row.kept_ratio},
            {"ms_per_step", row.ms_per_step}};  // kl_error: standard error of the mean, steps as independent
  if (row.sets.count == 0) return json;
  const auto count = static_cast<double>(row.sets.count);
  json["mass"] = row.sets.mass / count;
  json["best_mass"] = row.sets.best_mass / count;
  json["recall"] = row.sets.recall / count;
  json["set_tokens"] = row.sets.tokens / count;
  json["sets_sampled"] = row.sets.count;
  return json;
}

void print_table(const Json& rows) {
  fmt::print("| method | budget | mean KL | top-1 | perplexity | kept | mass | best mass | recall | ms/step |\n");
  fmt::print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const Json& row : rows) {
    const auto method = row["method"].get<std::string>(), budget = row["budget"].get<std::string>();
    if (row.contains("refused")) {
      fmt::print("| {} | {} | refused: {} |\n", method, budget, row["refused"].get<std::string>());
      continue;
    }
    const auto number = [&](const char* key) {
      return row.contains(key) ? fmt::format("{:.4f}", row[key].get<double>()) : std::string();
    };
    fmt::print("| {} | {} | {} | {} | {:.3f} | {} | {} | {} | {} | {:.1f} |\n", method, budget, number("kl"),
               number("top1_agreement"), row["perplexity"].get<double>(), number("kept_ratio"), number("mass"),
               number("best_mass"), number("recall"), row["ms_per_step"].get<double>());
  }
  std::fflush(stdout);
}

std::vector<Token> read_tokens(const engine::Engine& engine, const Options& options) {
  std::vector<Token> tokens = engine.tokenizer().encode(cli::read_text(options.text), text::Special::as_text, false);
  const std::int64_t wanted = options.prompt + options.steps + 1;
  const auto there = static_cast<std::int64_t>(tokens.size()) - options.skip;
  if (there < wanted) {
    throw UserError(fmt::format(
        "'{}' has {} tokens after --skip {}; --prompt {} --steps {} needs {}: give a longer text", options.text,
        std::max<std::int64_t>(there, 0), options.skip, options.prompt, options.steps, wanted));
  }
  tokens.erase(tokens.begin(), tokens.begin() + options.skip);
  if (engine.tokenizer().adds_bos()) tokens.insert(tokens.begin(), engine.tokenizer().bos());
  tokens.resize(static_cast<std::size_t>(wanted));
  return tokens;
}

void run(const Options& options, const std::string& command) {
  require_range("--prompt", options.prompt, 2, 1 << 22);
  require_range("--steps", options.steps, 1, 1 << 16);
  require_range("--sample", options.sample, 0, 1 << 16);
  require_range("--skip", options.skip, 0, 1 << 28);

  engine::EngineOptions how;
  how.model = options.model;
  how.context = options.prompt + options.steps + 1;
  how.sequences = PrefilledPrompt::kSequences;
  how.threads = options.threads;
  how.kv_type = parse_kv_type(options.kv);
  engine::Engine engine(how);

  std::optional<plan::Profile> profile;
  if (!options.profile.empty()) profile = plan::parse_profile(cli::read_text(options.profile));
  ArmRequest request{options.methods, options.budgets, options.variants};
  if (!options.sparse_prefill.empty()) request.sparse_prefill = options.sparse_prefill;
  if (profile) request.profile = &*profile;
  std::vector<std::string> warnings;
  const std::vector<Arm> arms = make_arms(engine.shape(), request, warnings);

  Report report(options.json, command, engine, options.model);
  report.set("text", file_name(options.text));
  report.set("prompt_tokens", options.prompt);
  report.set("steps", options.steps);
  report.write();

  const auto count = std::count_if(arms.begin(), arms.end(), [](const Arm& arm) { return arm.refused.empty(); });
  Progress progress(static_cast<double>(count + 1));
  for (const std::string& line : warnings) progress.note("warning: " + line);
  Fidelity fidelity(engine, options, read_tokens(engine, options), arms,
                    [&](const std::string& kind, std::int64_t tokens, double seconds) {
                      progress.note(fmt::format("prefill ({}) of {} tokens: {:.1f} s", kind, tokens, seconds));
                    });
  fidelity.run_dense(arms.front());
  progress.done(1, "dense");
  for (const Arm& arm : arms) {
    if (!arm.refused.empty()) {
      report.add({{"method", arm.method}, {"budget", arm.budget}, {"refused", arm.refused}});
      progress.note(fmt::format("{}: refused: {}", arm.label(), arm.refused));
      continue;
    }
    const auto start = Clock::now();
    const Row row = fidelity.run(arm);
    if (arm.method == "full" && row.kl_most != 0) {
      throw InternalError(
          fmt::format("'full' forked is not dense: its KL reaches {:.3e}; nothing is measured", row.kl_most));
    }
    report.add(json_of(arm, row, options.steps));
    report.write();
    progress.done(1, fmt::format("{}: KL {:.4f}, {:.1f} ms/step, {:.1f} s in all", arm.label(), row.kl, row.ms_per_step,
                                 std::chrono::duration<double>(Clock::now() - start).count()));
  }
  report.write();
  print_table(report.rows());
}

}  // namespace
}  // namespace glimpse::bench

int main(int count, char** words) {
  glimpse::bench::Options options;
  CLI::App app("how near sparse attention stays to dense attention on a text");
  app.add_option("model", options.model, "a GGUF file")->required();
  app.add_option("text", options.text, "UTF-8 prose, longer than prompt and steps")->required();
  app.add_option("--prompt", options.prompt, "tokens that are prefilled")->capture_default_str();
  app.add_option("--steps", options.steps, "tokens that are decoded, teacher-forced")->capture_default_str();
  app.add_option("--budgets", options.budgets, "as --attn-budget, by commas")->delimiter(',')->capture_default_str();
  app.add_option("--methods", options.methods, "NAME[/KEY=VALUE...] by commas, or all")
      ->delimiter(',')
      ->capture_default_str();
  app.add_flag("--variants", options.variants, "the papers' ablations too");
  app.add_option("--sample", options.sample, "sets of every so many steps are judged; 0: none")->capture_default_str();
  app.add_option("--skip", options.skip, "tokens of the text to leave out first")->capture_default_str();
  app.add_option("--sparse-prefill", options.sparse_prefill, "one budget for all sparse prefills; else each its own");
  app.add_option("--profile", options.profile, "a profile, for the methods that use one");
  app.add_option("--kv", options.kv, "type of the cache")->capture_default_str();
  app.add_option("--threads", options.threads, "0: one for each core that may be used")->capture_default_str();
  app.add_option("--json", options.json, "the results, written after every method");
  const std::span<char*> all(words, static_cast<std::size_t>(count));
  return glimpse::bench::run_program(app, all,
                                     [&] { glimpse::bench::run(options, glimpse::bench::command_line(all)); });
}
