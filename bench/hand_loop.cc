// An Engine by hand behind a pipe: what bench/serve_bench.py compares the server with. The engine is made with what
// `glimpse serve` makes its own with. Each line of standard input is a job, and each job gets a line of standard
// output; the first line out is the head of a file of results (bench/bench_report.h), when the model is loaded.
//
//   hand_loop MODEL [--context 9216] [--sequences 8] [--threads 0]
//
// A job is {"method": "tidal/reselect=18", "budget": "512", "prompts": [[ids]...], "tokens": N}: its requests are
// submitted together, and the engine steps until all have ended. Answers are greedy and have N tokens each. The line
// that comes back is {"tokens": [[ids]...], "seconds": [[of each token since the job began]...], "reused": [N...]}.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include "bench/bench_report.h"
#include "bench/method_arms.h"
#include "glimpse/base/error.h"

namespace glimpse::bench {
namespace {

using engine::Token;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string model;
  std::int64_t context = 9216;
  int sequences = 8, threads = 0;
};

plan::Plan plan_of(const engine::Engine& engine, const std::string& method, const std::string& budget) {
  if (method == "full") return plan::dense_plan(engine.shape());
  std::vector<std::string> warnings;
  for (const Arm& arm : make_arms(engine.shape(), {{method}, {budget}}, warnings)) {
    if (arm.method == method && arm.budget == budget) return arm.plan;
  }
  throw UserError(fmt::format("no plan of '{}' at '{}'", method, budget));
}

Json run_job(engine::Engine& engine, const Json& job) {
  const plan::Plan plan = plan_of(engine, job.at("method").get<std::string>(), job.at("budget").get<std::string>());
  const auto prompts = job.at("prompts").get<std::vector<std::vector<Token>>>();
  std::vector<std::vector<double>> seconds(prompts.size());
  std::vector<engine::RequestId> ids;
  const Clock::time_point start = Clock::now();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    engine::Request request;
    request.prompt = prompts[i];
    request.plan = plan;
    request.max_tokens = job.at("tokens").get<std::int64_t>();
    request.ignore_end = true;
    request.on_token = [&own = seconds[i], start](Token, std::string_view) {
      own.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    };
    ids.push_back(engine.submit(std::move(request)));
  }
  while (engine.step()) {
  }
  Json answer{{"tokens", Json::array()}, {"seconds", seconds}, {"reused", Json::array()}};
  for (const engine::RequestId id : ids) {
    const engine::Result& result = engine.result(id);
    if (result.reason != engine::FinishReason::length) throw UserError("a request ended early: " + result.error);
    answer["tokens"].push_back(result.tokens);
    answer["reused"].push_back(result.stats.reused_tokens);
    engine.release(id);
  }
  return answer;
}

void run(const Options& options) {
  engine::EngineOptions how;
  how.model = options.model;
  how.context = options.context;
  how.sequences = options.sequences;
  how.threads = options.threads;
  how.slice_seconds = engine::kServedSliceSeconds;
  how.prefix_bytes = -1;
  engine::Engine engine(how);
  const auto say = [](const Json& line) { std::cout << line.dump() << std::endl; };
  say(Json::parse(Report("-", "", engine, options.model).text()));
  for (std::string line; std::getline(std::cin, line);) say(run_job(engine, Json::parse(line)));
}

}  // namespace
}  // namespace glimpse::bench

int main(int count, char** words) {
  glimpse::bench::Options options;
  CLI::App app("an Engine by hand, a job of requests for each line of standard input");
  app.add_option("model", options.model, "a GGUF file")->required();
  app.add_option("--context", options.context, "tokens of a sequence")->capture_default_str();
  app.add_option("--sequences", options.sequences, "that the cache has room for")->capture_default_str();
  app.add_option("--threads", options.threads, "0: one for each core that may be used")->capture_default_str();
  const std::span<char*> all(words, static_cast<std::size_t>(count));
  return glimpse::bench::run_program(app, all, [&] { glimpse::bench::run(options); });
}
