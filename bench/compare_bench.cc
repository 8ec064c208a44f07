// glimpse beside llama.cpp in one process, on the same tokens: decoding at given depths and prefill, arms in turns.
// The answer comes first: our dense distribution must be libllama's before anything is timed.
//
//   compare_bench MODEL TEXT [--depth 0,8192] [--prefill 8192] [--methods tidal] [--budgets 512] [--repetitions 5]
//   [--tokens 40]
//                 [--threads 2] [--kv bf16] [--llama-state FOLDER] [--divergence 2e-2] [--json FILE]
//
// --divergence is the mean KL that still counts as the same answer: random weights need more than trained ones, because
// nothing dampens the noise of 8-bit activations. --llama-state keeps llama.cpp's prefilled cache between runs (its
// prefill of 30,000 tokens takes many minutes).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <thread>

#include "bench/bench_report.h"
#include "bench/method_arms.h"
#include "bench/statistics.h"
#include "glimpse/base/error.h"
#include "glimpse/cli/setup.h"
#include "glimpse/engine/engine.h"
#include "glimpse/evaluate/speed.h"
#include "tests/support/llama_reference.h"

namespace glimpse::bench {
namespace {

using Clock = std::chrono::steady_clock;
using evaluate::Arm;
using evaluate::SpeedRow;
using evaluate::Token;

struct Options {
  std::string model, text, kv = "bf16", llama_state, json;
  std::vector<std::string> methods{"tidal"}, budgets{"512"};
  std::vector<std::int64_t> depths, prefill;
  int repetitions = 5, threads = 0, prefill_repetitions = 1;
  bool prefill_ours = false;  ///< without llama.cpp
  std::int64_t tokens = 40;
  double divergence = 2e-2;
};

constexpr const char* kLlama = "llama.cpp";

/// Idle pool threads of the other side poll for a while after their last graph: let them fall asleep.
void settle() {
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
}

Arm llama_arm(reference::LlamaReference& llama, const std::string& state_folder) {
  Arm arm;
  arm.name = "llama.cpp";
  arm.prepare = [&llama, state_folder](std::span<const Token> context) {
    const auto wanted = static_cast<int>(context.size());
    const std::string file = fmt::format("{}/llama-{}.state", state_folder, wanted);
    llama.truncate(std::min(llama.length(), wanted));
    if (llama.length() == wanted) return;
    if (!state_folder.empty() && llama.load(file, wanted)) return;
    llama.append(context.subspan(static_cast<std::size_t>(llama.length())));
    if (!state_folder.empty()) llama.save(file);
  };
  arm.decode = [&llama](std::span<const Token> tokens) {
    settle();
    const int depth = llama.length();
    std::vector<double> times;
    const auto start = Clock::now();
    for (const Token& token : tokens) {
      llama.append({&token, 1});
      times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    llama.truncate(depth);
    return times;
  };
  arm.prefill = [&llama](std::span<const Token> tokens) {
    settle();
    llama.truncate(0);
    const auto start = Clock::now();
    llama.append(tokens);
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  return arm;
}

Arm settled(Arm arm) {
  arm.decode = [decode = std::move(arm.decode)](std::span<const Token> tokens) {
    settle();
    return decode(tokens);
  };
  arm.prefill = [prefill = std::move(arm.prefill)](std::span<const Token> tokens) {
    settle();
    return prefill(tokens);
  };
  return arm;
}

void check_answers(engine::Engine& engine, reference::LlamaReference& llama, std::span<const Token> tokens,
                   double allowed) {
  engine::Sequence sequence = engine.open(plan::dense_plan(engine.shape()));
  sequence.prefill(tokens);
  double mean = 0;
  llama.truncate(0);
  llama.append(tokens);
  constexpr int kSteps = 16;
  for (int i = 0; i < kSteps; ++i) {
    const Token token = tokens[static_cast<std::size_t>(i)];
    const auto theirs = llama.append({&token, 1});
    mean += divergence(theirs, sequence.decode(token)) / kSteps;  // of ours from libllama's
  }
  llama.truncate(0);
  std::fprintf(stderr, "mean KL to libllama over %d decoded tokens: %.2e\n", kSteps, mean);
  if (!(mean < allowed)) throw InternalError("our answer is not libllama's; nothing is timed");
}

/// A row for each of `speeds`. `arms` are llama.cpp's and then ours, by the names of the rows.
void add_rows(Report& report, const char* measure, const std::vector<SpeedRow>& speeds,
              const std::map<std::string, const bench::Arm*>& arms) {
  for (const SpeedRow& row : speeds) {
    double llama = 0;
    for (const SpeedRow& other : speeds) {
      if (other.arm == kLlama && other.depth == row.depth) llama = other.median_s;
    }
    const bench::Arm* const arm = arms.at(row.arm);
    Json entry{{"measure", measure},
               {"method", arm == nullptr ? kLlama : arm->method},
               {"budget", arm == nullptr ? "" : arm->budget},
               {"tokens", row.depth},
               {"median_ms", 1e3 * row.median_s},
               {"least_ms", 1e3 * row.least_s},
               {"most_ms", 1e3 * row.most_s}};
    if (llama > 0) entry["over_llama"] = llama / row.median_s;
    if (row.attention_s) entry["attention_ms"] = 1e3 * *row.attention_s;
    if (row.kept_ratio) entry["kept_ratio"] = *row.kept_ratio;
    if (row.bytes_per_token) entry["bytes_per_token"] = *row.bytes_per_token;
    report.add(entry);
  }
}

void print(const Json& rows, const std::string& measure) {
  fmt::print("\n| {} | tokens | ms | least | most | x llama.cpp | attention | kept | KV MB/token |\n", measure);
  fmt::print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const auto& row : rows) {
    if (row["measure"] != measure) continue;
    const auto number = [&](const char* key, int digits, double unit) {
      return row.contains(key) ? fmt::format("{:.{}f}", row[key].get<double>() * unit, digits) : std::string();
    };
    fmt::print("| {} {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", row["method"].get<std::string>(),
               row["budget"].get<std::string>(), row["tokens"].get<std::int64_t>(), number("median_ms", 3, 1),
               number("least_ms", 3, 1), number("most_ms", 3, 1), number("over_llama", 2, 1),
               number("attention_ms", 3, 1), number("kept_ratio", 4, 1), number("bytes_per_token", 2, 1e-6));
  }
  std::fflush(stdout);
}

void run(const Options& options, const std::string& command) {
  const std::string text = cli::read_text(options.text);
  require_range("--repetitions", options.repetitions, 1, 1000);
  require_range("--prefill-repetitions", options.prefill_repetitions, 1, 1000);
  require_range("--tokens", options.tokens, evaluate::DecodeOptions().warm_tokens + 1, 1 << 20);
  require_range("--threads", options.threads, 0, 4096);
  for (const std::int64_t depth : options.depths) require_range("--depth", depth, 0, 1 << 22);
  for (const std::int64_t length : options.prefill) require_range("--prefill", length, 1, 1 << 22);
  std::int64_t longest = 512;
  for (const std::int64_t depth : options.depths) longest = std::max(longest, depth + options.tokens);
  for (const std::int64_t length : options.prefill) longest = std::max(longest, length);

  engine::EngineOptions engine_options;
  engine_options.model = options.model;
  engine_options.context = longest + 64;
  engine_options.sequences = 2;
  engine_options.threads = options.threads;
  engine_options.kv_type = parse_kv_type(options.kv);
  engine::Engine engine(engine_options);
  std::vector<Token> tokens = engine.tokenizer().encode(text, text::Special::as_text, true);
  if (tokens.empty()) throw UserError(fmt::format("'{}' has no text", options.text));
  for (std::size_t i = 0; static_cast<std::int64_t>(tokens.size()) < longest; ++i) tokens.push_back(tokens[i]);

  Report report(options.json, command, engine, options.model);
  reference::LlamaReference llama(options.model,
                                  {.context = static_cast<int>(longest) + 64, .threads = engine.threads()});
  check_answers(engine, llama, std::span(tokens).first(256), options.divergence);

  std::vector<std::string> warnings;
  const std::vector<bench::Arm> methods = make_arms(engine.shape(), {options.methods, options.budgets}, warnings);
  for (const std::string& line : warnings) std::fprintf(stderr, "warning: %s\n", line.c_str());
  std::vector<std::pair<std::string, plan::Plan>> plans;
  std::map<std::string, const bench::Arm*> by_name{{kLlama, nullptr}};
  for (const bench::Arm& arm : methods) {
    if (!arm.refused.empty()) {
      std::fprintf(stderr, "%s: refused: %s\n", arm.label().c_str(), arm.refused.c_str());
      continue;
    }
    plans.emplace_back(arm.label(), arm.plan);
    by_name[arm.label()] = &arm;
  }
  std::vector<Arm> arms{llama_arm(llama, options.llama_state)};
  for (Arm& arm : evaluate::engine_arms(engine, plans)) arms.push_back(settled(std::move(arm)));

  report.set("text", file_name(options.text));
  report.set("repetitions", options.repetitions);
  if (!options.prefill.empty()) {
    evaluate::PrefillOptions how;
    how.lengths = options.prefill;
    how.repetitions = options.prefill_repetitions;
    std::vector<Arm> chosen;  // llama.cpp, the first plan, and those whose prefill is sparse
    if (!options.prefill_ours) chosen.push_back(arms[0]);
    chosen.push_back(arms[1]);
    for (std::size_t i = 1; i < plans.size(); ++i) {
      if (plans[i].second.prefill.sparse) chosen.push_back(arms[i + 1]);
    }
    add_rows(report, "prefill", evaluate::measure_prefill(chosen, tokens, how), by_name);
    print(report.rows(), "prefill");
  }
  if (!options.depths.empty()) {
    evaluate::DecodeOptions how;
    how.depths = options.depths;
    how.repetitions = options.repetitions;
    how.tokens = options.tokens;
    add_rows(report, "decode", evaluate::measure_decode(arms, tokens, how), by_name);
    print(report.rows(), "decode");
  }
  report.write();
}

}  // namespace
}  // namespace glimpse::bench

int main(int count, char** words) {
  glimpse::bench::Options options;
  CLI::App app("glimpse beside llama.cpp");
  app.add_option("model", options.model, "a GGUF file")->required();
  app.add_option("text", options.text, "UTF-8 prose; repeated where it is short")->required();
  const auto list = [&](const char* flag, auto& field, const char* help) {
    app.add_option(flag, field, help)->delimiter(',')->capture_default_str();
  };
  const auto value = [&](const char* flag, auto& field, const char* help) {
    app.add_option(flag, field, help)->capture_default_str();
  };
  list("--depth", options.depths, "tokens of context to decode behind");
  list("--prefill", options.prefill, "tokens of prompts");
  app.add_flag("--prefill-ours", options.prefill_ours, "prefill without llama.cpp");
  list("--methods", options.methods, "NAME[/KEY=VALUE...], or all; full is always measured");
  list("--budgets", options.budgets, "as --attn-budget");
  value("--repetitions", options.repetitions, "of each decoding");
  value("--prefill-repetitions", options.prefill_repetitions, "of each prefill");
  value("--tokens", options.tokens, "decoded each time");
  value("--threads", options.threads, "0: one for each core that may be used");
  value("--kv", options.kv, "type of our cache");
  value("--divergence", options.divergence, "mean KL that is still the same answer");
  value("--llama-state", options.llama_state, "folder that keeps llama.cpp's cache between runs");
  value("--json", options.json, "the results");
  const std::span<char*> all(words, static_cast<std::size_t>(count));
  return glimpse::bench::run_program(app, all,
                                     [&] { glimpse::bench::run(options, glimpse::bench::command_line(all)); });
}
