// What a second question over a document costs, method by method: the time to its first token beside that of the first
// question, which left the document behind. With --check each question is also asked cold, and under `exact` the answer
// must be the same, token for token, or nothing is timed.
//
//   prefix_bench MODEL TEXT [--document 8192] [--methods all] [--budgets 1024] [--check] [--kv bf16] [--threads N]
//                [--json FILE]
//
// The document is the text's beginning, each question the next 24 tokens of it. The first question is asked densely.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "bench/bench_report.h"
#include "bench/method_arms.h"
#include "glimpse/base/error.h"
#include "glimpse/cli/setup.h"

namespace glimpse::bench {
namespace {

using engine::Reuse;
using engine::Token;

constexpr std::int64_t kQuestion = 24, kAnswer = 16;

struct Options {
  std::string model, text, kv = "bf16", json;
  std::vector<std::string> budgets{"1024"}, methods{"all"};
  std::int64_t document = 8192;
  int threads = 0;
  bool check = false;
};

struct Question {
  std::vector<Token> prompt;
  const plan::Plan* plan = nullptr;
  Reuse reuse = Reuse::dense;
};

engine::Result ask(engine::Engine& engine, const Question& question) {
  engine::Request request;
  request.prompt = question.prompt;
  request.plan = *question.plan;
  request.max_tokens = kAnswer;
  request.ignore_end = true;
  request.reuse = question.reuse;
  const engine::RequestId id = engine.submit(std::move(request));
  while (engine.step()) {
  }
  engine::Result result = engine.result(id);
  engine.release(id);
  if (result.reason == engine::FinishReason::failed) throw UserError(result.error);
  return result;
}

void run(const Options& options, const std::string& command) {
  require_range("--document", options.document, 64, 1 << 22);
  engine::EngineOptions how;
  how.model = options.model;
  how.context = options.document + kQuestion + kAnswer;
  how.sequences = 4;
  how.threads = options.threads;
  how.kv_type = parse_kv_type(options.kv);
  how.prefix_bytes = -1;
  engine::Engine engine(how);
  const std::vector<Token> text =
      engine.tokenizer().encode(cli::read_text(options.text), text::Special::as_text, false);
  std::vector<std::string> warnings;
  const std::vector<Arm> arms = make_arms(engine.shape(), {options.methods, options.budgets}, warnings);
  const std::int64_t wanted = options.document + kQuestion * (1 + 2 * std::ssize(arms));
  if (std::ssize(text) < wanted) {
    throw UserError(fmt::format("'{}' has {} tokens, and the document and its questions want {}: give a longer text",
                                options.text, text.size(), wanted));
  }
  std::int64_t at = options.document;
  const auto next_prompt = [&] {
    std::vector<Token> prompt(text.begin(), text.begin() + options.document);
    prompt.insert(prompt.end(), text.begin() + at, text.begin() + at + kQuestion);
    at += kQuestion;
    return prompt;
  };
  Report report(options.json, command, engine, options.model);
  report.set("document_tokens", options.document);
  const plan::Plan dense = plan::dense_plan(engine.shape());
  const double cold = ask(engine, {next_prompt(), &dense}).stats.first_token_s;
  report.set("cold_s", cold);
  fmt::print("the first question: {:.3f} s to its first token\n\n", cold);
  fmt::print("| method | budget | reuse | tokens there | first token ms | of cold |\n");
  fmt::print("| --- | ---: | --- | ---: | ---: | ---: |\n");
  for (const Arm& arm : arms) {
    if (!arm.refused.empty()) continue;
    for (const Reuse reuse : {Reuse::dense, Reuse::exact}) {
      const std::vector<Token> prompt = next_prompt();
      const engine::Result result = ask(engine, {prompt, &arm.plan, reuse});
      const auto& stats = result.stats;
      if (options.check && reuse == Reuse::exact &&
          ask(engine, {prompt, &arm.plan, Reuse::none}).tokens != result.tokens) {
        throw InternalError(arm.label() + ": a hit says something else than a miss");
      }
      report.add({{"method", arm.method},
                  {"budget", arm.budget},
                  {"reuse", name(reuse)},
                  {"reused_tokens", stats.reused_tokens},
                  {"first_token_s", stats.first_token_s},
                  {"of_cold", stats.first_token_s / cold}});
      fmt::print("| {} | {} | {} | {} | {:.1f} | {:.2f} % |\n", arm.method, arm.budget, name(reuse),
                 stats.reused_tokens, 1e3 * stats.first_token_s, 100 * stats.first_token_s / cold);
      std::fflush(stdout);
    }
  }
  report.write();
}

}  // namespace
}  // namespace glimpse::bench

int main(int count, char** words) {
  glimpse::bench::Options options;
  CLI::App app("what a second question over a document costs");
  app.add_option("model", options.model, "a GGUF file")->required();
  app.add_option("text", options.text, "UTF-8 prose, longer than the document")->required();
  app.add_option("--document", options.document, "its tokens")->capture_default_str();
  app.add_option("--methods", options.methods, "NAME[/KEY=VALUE...] by commas")->delimiter(',')->capture_default_str();
  app.add_option("--budgets", options.budgets, "the methods'")->delimiter(',')->capture_default_str();
  app.add_flag("--check", options.check, "ask each question cold, too, and compare the answers");
  app.add_option("--kv", options.kv, "type of the cache")->capture_default_str();
  app.add_option("--threads", options.threads, "0: one for each core that may be used")->capture_default_str();
  app.add_option("--json", options.json, "the results, written at the end");
  const std::span<char*> all(words, static_cast<std::size_t>(count));
  return glimpse::bench::run_program(app, all,
                                     [&] { glimpse::bench::run(options, glimpse::bench::command_line(all)); });
}
