// What a fork of a long sequence costs, method by method: under the same plan, under another budget, what it costs to
// drop the latter, and the first steps of both sides after it, each beside the step before. A fork must say what its
// source says, bit for bit, or nothing is timed.
//
//   fork_bench MODEL TEXT [--prompt 30000] [--methods all] [--budgets 1024,512] [--repeats 21] [--kv bf16]
//              [--threads N] [--json FILE]
//
// The prompt is prefilled densely once and forked for every method; the first step builds what the method's searches
// read. The second budget is that of the forks under another plan.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "bench/bench_report.h"
#include "bench/method_arms.h"
#include "bench/statistics.h"
#include "glimpse/base/error.h"
#include "glimpse/cli/setup.h"
#include "glimpse/evaluate/speed.h"

namespace glimpse::bench {
namespace {

using engine::Sequence;
using engine::Token;
using evaluate::median;

struct Options {
  std::string model, text, kv = "bf16", json;
  std::vector<std::string> budgets{"1024", "512"}, methods{"all"};
  std::int64_t prompt = 30000;
  int threads = 0, repeats = 21;
};

/// Milliseconds of one call.
template <class Work>
double ms_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

/// The next token by greedy choice after `token`, and how long that took.
struct Stepped {
  Token next = 0;
  std::vector<float> logits;
  double ms = 0;
};
Stepped step(Sequence& sequence, Token token) {
  Stepped result;
  std::span<const float> logits;
  result.ms = ms_of([&] { logits = sequence.decode(token); });
  result.logits.assign(logits.begin(), logits.end());
  result.next = arg_max(logits);
  return result;
}

Json measure(const Sequence& base, const Arm& arm, const plan::Plan& other, const Options& options) {
  Sequence source = base.fork(arm.plan);
  Stepped last = step(source, 1);
  for (int i = 0; i < 3; ++i) last = step(source, last.next);
  {
    Sequence fork = source.fork(arm.plan);
    const Stepped mine = step(source, last.next);
    if (step(fork, last.next).logits != mine.logits) throw InternalError(arm.label() + ": a fork says something else");
    last = mine;
  }
  std::vector<double> same, changed, dropped, before, after, fork_after;
  const bool can_change = !plan::forgets(arm.plan);
  for (int i = 0; i < options.repeats; ++i) {
    last = step(source, last.next);
    before.push_back(last.ms);
    if (can_change) {
      std::optional<Sequence> fork;
      changed.push_back(ms_of([&] { fork.emplace(source.fork(other)); }));
      dropped.push_back(ms_of([&] { fork.reset(); }));
    }
    std::optional<Sequence> fork;
    same.push_back(ms_of([&] { fork.emplace(source.fork(arm.plan)); }));
    fork_after.push_back(step(*fork, last.next).ms);
    last = step(source, last.next);
    after.push_back(last.ms);
  }
  Json json{{"method", arm.method},
            {"budget", arm.budget},
            {"fork_ms", median(same)},
            {"most_fork_ms", *std::max_element(same.begin(), same.end())},
            {"step_ms", median(before)},
            {"step_after_ms", median(after)},
            {"fork_step_ms", median(fork_after)}};
  json["other_budget_ms"] = can_change ? Json(median(changed)) : Json(nullptr);
  json["drop_ms"] = can_change ? Json(median(dropped)) : Json(nullptr);
  return json;
}

void run(const Options& options, const std::string& command) {
  require_range("--prompt", options.prompt, 2, 1 << 22);
  require_range("--repeats", options.repeats, 1, 1000);
  if (options.budgets.size() != 2) throw UserError("--budgets: give two, that of the method and that of other forks");
  engine::EngineOptions how;
  how.model = options.model;
  how.context = options.prompt + 3 * options.repeats + 64;
  how.sequences = 3;
  how.threads = options.threads;
  how.kv_type = parse_kv_type(options.kv);
  engine::Engine engine(how);
  std::vector<Token> tokens = engine.tokenizer().encode(cli::read_text(options.text), text::Special::as_text, false);
  if (static_cast<std::int64_t>(tokens.size()) < options.prompt) {
    throw UserError(fmt::format("'{}' has {} tokens, and --prompt wants {}: give a longer text", options.text,
                                tokens.size(), options.prompt));
  }
  tokens.resize(static_cast<std::size_t>(options.prompt));
  std::vector<std::string> warnings;
  const std::vector<Arm> arms = make_arms(engine.shape(), {options.methods, {options.budgets[0]}}, warnings);
  const std::vector<Arm> others = make_arms(engine.shape(), {options.methods, {options.budgets[1]}}, warnings);
  Report report(options.json, command, engine, options.model);
  report.set("prompt_tokens", options.prompt);
  Sequence base = engine.open(plan::dense_plan(engine.shape()));
  base.prefill(tokens);
  fmt::print(
      "| method | budget | fork ms | most | other budget ms | its end | step ms | after a fork | the fork's first |\n");
  fmt::print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const Arm& arm : arms) {
    if (!arm.refused.empty()) continue;
    const auto other = std::find_if(others.begin(), others.end(), [&](const Arm& candidate) {
      return candidate.method == arm.method && candidate.refused.empty();
    });
    const Json row = measure(base, arm, other == others.end() ? arm.plan : other->plan, options);
    report.add(row);
    const auto cell = [&](const char* key) {
      return row[key].is_null() ? std::string("-") : fmt::format("{:.3f}", row[key].get<double>());
    };
    fmt::print("| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", arm.method, arm.budget, cell("fork_ms"),
               cell("most_fork_ms"), cell("other_budget_ms"), cell("drop_ms"), cell("step_ms"), cell("step_after_ms"),
               cell("fork_step_ms"));
    std::fflush(stdout);
  }
  report.write();
}

}  // namespace
}  // namespace glimpse::bench

int main(int count, char** words) {
  glimpse::bench::Options options;
  CLI::App app("what a fork of a long sequence costs");
  app.add_option("model", options.model, "a GGUF file")->required();
  app.add_option("text", options.text, "UTF-8 prose, as long as the prompt")->required();
  app.add_option("--prompt", options.prompt, "its tokens")->capture_default_str();
  app.add_option("--methods", options.methods, "NAME[/KEY=VALUE...] by commas")->delimiter(',')->capture_default_str();
  app.add_option("--budgets", options.budgets, "the method's, and that of forks under another plan")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--repeats", options.repeats, "forks of each kind")->capture_default_str();
  app.add_option("--kv", options.kv, "type of the cache")->capture_default_str();
  app.add_option("--threads", options.threads, "0: one for each core that may be used")->capture_default_str();
  app.add_option("--json", options.json, "the results, written at the end");
  const std::span<char*> all(words, static_cast<std::size_t>(count));
  return glimpse::bench::run_program(app, all,
                                     [&] { glimpse::bench::run(options, glimpse::bench::command_line(all)); });
}
