// Lossless decoding beside plain dense decoding, greedy, in turns on the same prompts: are the answers the same token
// for token, and what do drafts gain. Where answers part, the dense logits of both tokens behind the common beginning
// are compared: rows of one pass and of more than five differ in their last bits (docs/architecture.md), and so do
// ties.
//
//   lossless_bench MODEL TEXT [--prompt 8192] [--prompts 1] [--tokens 200] [--methods tidal,kascade] [--budgets 512]
//                  [--drafts 0,4] [--rounds 1] [--skip 0] [--kv bf16] [--threads N] [--json FILE]
//
// Prompts are stretches of the text, one behind the other. `--drafts 0` is the adaptive number. Methods that forget
// tokens are left out of "all".
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "bench/bench_report.h"
#include "bench/method_arms.h"
#include "glimpse/base/error.h"
#include "glimpse/cli/setup.h"
#include "glimpse/evaluate/speed.h"

namespace glimpse::bench {
namespace {

using engine::Token;
using evaluate::median;

struct Options {
  std::string model, text, kv = "bf16", json;
  std::vector<std::string> budgets{"512"}, methods{"tidal", "kascade"};
  std::vector<int> drafts{0, 4};
  std::int64_t prompt = 8192, prompts = 1, tokens = 200, skip = 0;
  int threads = 0, rounds = 1;
};

struct Answer {
  std::vector<Token> tokens;
  engine::RequestStats stats;
  /// Of what is decoded: the first token comes from the prefill.
  double ms() const { return 1e3 * stats.decode_s / static_cast<double>(tokens.size() - 1); }
};

/// Where an answer leaves dense decoding's.
struct Parting {
  std::int64_t token = 0;
  double gap = 0;  ///< dense logit of dense decoding's token over the other's
};

struct Row {
  const Arm* arm = nullptr;
  int drafts = 0;
  std::vector<double> ms, speed;  ///< [prompts * rounds], over dense decoding of the same round
  engine::LosslessStats lossless;
  std::int64_t tokens = 0, same = 0;
  std::vector<Parting> partings;
};

class Prompt {
 public:
  Prompt(engine::Engine& engine, const Options& options, std::vector<Token> tokens)
      : engine_(engine), options_(options), tokens_(std::move(tokens)), dense_(plan::dense_plan(engine.shape())) {
    base_.emplace(engine.open(dense_));
    base_->prefill(std::span(tokens_).first(tokens_.size() - 1));
  }

  /// `drafts` < 0: plain dense decoding.
  Answer run(const plan::Plan& plan, int drafts) {
    engine::Request request;
    request.prompt = tokens_;
    request.plan = drafts < 0 ? dense_ : plan;
    request.max_tokens = options_.tokens;
    request.ignore_end = true;
    request.lossless = drafts >= 0;
    request.draft_tokens = std::max(drafts, 0);
    // Lossless prefills are dense, whatever the plan.
    request.plan.prefill.sparse = false;
    request.plan.prefill.tile_rows = 0;
    engine::Sequence start = base_->fork(request.plan);
    const engine::RequestId id = engine_.submit(std::move(request), std::move(start));
    while (!engine_.finished(id)) engine_.step();
    const engine::Result& result = engine_.result(id);
    if (result.reason != engine::FinishReason::length) throw InternalError("an answer ended early: " + result.error);
    Answer answer{result.tokens, result.stats};
    engine_.release(id);
    return answer;
  }

  Parting compare(const Answer& dense, const Answer& other) {
    const auto [ours, theirs] = std::mismatch(dense.tokens.begin(), dense.tokens.end(), other.tokens.begin());
    Parting parting;
    parting.token = ours - dense.tokens.begin();
    if (ours == dense.tokens.end()) return parting;
    engine::Sequence fork = base_->fork(dense_);
    std::vector<Token> behind{tokens_.back()};
    behind.insert(behind.end(), dense.tokens.begin(), ours);
    std::span<const float> logits;
    for (const Token token : behind) logits = fork.decode(token);
    parting.gap = static_cast<double>(logits[static_cast<std::size_t>(*ours)]) -
                  static_cast<double>(logits[static_cast<std::size_t>(*theirs)]);
    return parting;
  }

 private:
  engine::Engine& engine_;
  const Options& options_;
  std::vector<Token> tokens_;
  plan::Plan dense_;
  std::optional<engine::Sequence> base_;
};

double largest_gap(const Row& row) {
  double gap = 0;
  for (const Parting& parting : row.partings) gap = std::max(gap, std::abs(parting.gap));
  return gap;
}

Json json_of(const Row& row) {
  const engine::LosslessStats& lossless = row.lossless;
  Json json{{"method", row.arm->method},
            {"budget", row.arm->budget},
            {"drafts", row.drafts},
            {"ms_per_token", median(row.ms)},
            {"speed_over_dense", median(row.speed)},
            {"least_speed", *std::min_element(row.speed.begin(), row.speed.end())},
            {"most_speed", *std::max_element(row.speed.begin(), row.speed.end())},
            {"tokens", row.tokens},
            {"drafted", lossless.drafted},
            {"accepted", lossless.accepted},
            {"verify_passes", lossless.verify_passes},
            {"dense_steps", lossless.dense_steps},
            {"same_answers", row.same},
            {"parted", row.partings.size()},
            {"largest_gap", largest_gap(row)}};
  if (lossless.drafted > 0) {
    json["draft_ms"] = 1e3 * lossless.draft_s / static_cast<double>(lossless.drafted);
    json["verify_ms"] =
        1e3 * lossless.verify_s / static_cast<double>(std::max<std::int64_t>(1, lossless.verify_passes));
  }
  return json;
}

void print_table(const Json& rows, std::int64_t prompts) {
  fmt::print(
      "| method | budget | drafts | ms/token | x dense | accepted | draft ms | verify ms | dense steps | same "
      "answers | largest gap |\n");
  fmt::print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const Json& row : rows) {
    const auto drafted = row["drafted"].get<std::int64_t>();
    const auto cost = [&](const char* key) {
      return row.contains(key) ? fmt::format("{:.2f}", row[key].get<double>()) : std::string();
    };
    fmt::print("| {} | {} | {} | {:.2f} | {:.3f} | {} | {} | {} | {} | {} of {} | {:.4f} |\n",
               row["method"].get<std::string>(), row["budget"].get<std::string>(),
               row["drafts"].get<int>() == 0 ? "adaptive" : fmt::to_string(row["drafts"].get<int>()),
               row["ms_per_token"].get<double>(), row["speed_over_dense"].get<double>(),
               drafted == 0 ? std::string() : fmt::format("{} of {}", row["accepted"].get<std::int64_t>(), drafted),
               cost("draft_ms"), cost("verify_ms"), row["dense_steps"].get<std::int64_t>(),
               row["same_answers"].get<std::int64_t>(), prompts, row["largest_gap"].get<double>());
  }
  std::fflush(stdout);
}

void run(const Options& options, const std::string& command) {
  require_range("--prompt", options.prompt, 2, 1 << 22);
  require_range("--prompts", options.prompts, 1, 1000);
  require_range("--tokens", options.tokens, 2, 1 << 16);
  require_range("--rounds", options.rounds, 1, 100);
  require_range("--skip", options.skip, 0, 1 << 28);
  for (const int drafts : options.drafts) require_range("--drafts", drafts, 0, engine::kMostDrafts);

  engine::EngineOptions how;
  how.model = options.model;
  how.context = options.prompt + options.tokens + 64;
  how.sequences = 3;
  how.threads = options.threads;
  how.kv_type = parse_kv_type(options.kv);
  engine::Engine engine(how);
  std::vector<Token> text = engine.tokenizer().encode(cli::read_text(options.text), text::Special::as_text, false);
  const std::int64_t wanted = options.skip + options.prompts * options.prompt;
  if (engine.tokenizer().adds_bos()) text.insert(text.begin(), engine.tokenizer().bos());
  if (static_cast<std::int64_t>(text.size()) < wanted) {
    throw UserError(fmt::format("'{}' has {} tokens; --skip {} and {} prompts of {} need {}: give a longer text",
                                options.text, text.size(), options.skip, options.prompts, options.prompt, wanted));
  }

  std::vector<std::string> warnings;
  const std::vector<Arm> arms = make_arms(engine.shape(), {options.methods, options.budgets}, warnings);
  const bool all = std::find(options.methods.begin(), options.methods.end(), "all") != options.methods.end();
  std::vector<Row> rows;
  for (const Arm& arm : arms) {
    if (!arm.refused.empty() || arm.method == "full" || (all && plan::forgets(arm.plan))) continue;
    for (const int drafts : options.drafts) rows.push_back({&arm, drafts});
  }
  for (const std::string& line : warnings) std::fprintf(stderr, "warning: %s\n", line.c_str());
  Report report(options.json, command, engine, options.model);
  report.set("text", file_name(options.text));
  report.set("prompt_tokens", options.prompt);
  report.set("prompts", options.prompts);

  Progress progress(static_cast<double>(options.prompts) *
                    (5 + static_cast<double>(options.rounds) * static_cast<double>(rows.size() + 1)));
  std::vector<double> dense_ms;
  const auto save = [&] {
    report.set("dense_ms", median(dense_ms));
    report.clear_rows();
    for (const Row& row : rows) report.add(json_of(row));
    report.write();
  };
  for (std::int64_t index = 0; index < options.prompts; ++index) {
    const auto first = text.begin() + options.skip + index * options.prompt;
    Prompt prompt(engine, options, {first, first + options.prompt});
    progress.done(5, fmt::format("prompt {} is prefilled", index));
    std::optional<Answer> wanted_answer;
    for (int round = 0; round < options.rounds; ++round) {
      const Answer dense = prompt.run({}, -1);
      if (!wanted_answer) wanted_answer = dense;
      dense_ms.push_back(dense.ms());
      progress.done(1, fmt::format("dense: {:.2f} ms/token", dense.ms()));
      for (Row& row : rows) {
        Answer got;
        try {
          got = prompt.run(row.arm->plan, row.drafts);
        } catch (const UserError& error) {
          throw UserError(row.arm->label() + ": " + error.what());
        }
        row.ms.push_back(got.ms());
        row.speed.push_back(dense.ms() / got.ms());
        row.tokens += static_cast<std::int64_t>(got.tokens.size());
        row.lossless.drafted += got.stats.lossless.drafted;
        row.lossless.accepted += got.stats.lossless.accepted;
        row.lossless.verify_passes += got.stats.lossless.verify_passes;
        row.lossless.dense_steps += got.stats.lossless.dense_steps;
        row.lossless.draft_s += got.stats.lossless.draft_s;
        row.lossless.verify_s += got.stats.lossless.verify_s;
        if (round == 0) {
          Parting parting = prompt.compare(*wanted_answer, got);
          if (parting.token == static_cast<std::int64_t>(got.tokens.size())) {
            ++row.same;
          } else {
            row.partings.push_back(parting);
          }
        }
        progress.done(
            1, fmt::format("{}, {} drafts: {:.2f} ms/token, {:.2f}x, {} of {} accepted", row.arm->label(), row.drafts,
                           got.ms(), dense.ms() / got.ms(), got.stats.lossless.accepted, got.stats.lossless.drafted));
      }
    }
    save();
  }
  print_table(report.rows(), options.prompts);
}

}  // namespace
}  // namespace glimpse::bench

int main(int count, char** words) {
  glimpse::bench::Options options;
  CLI::App app("lossless decoding beside dense decoding");
  app.add_option("model", options.model, "a GGUF file")->required();
  app.add_option("text", options.text, "UTF-8 prose, as long as all prompts")->required();
  app.add_option("--prompt", options.prompt, "tokens of a prompt")->capture_default_str();
  app.add_option("--prompts", options.prompts, "how many")->capture_default_str();
  app.add_option("--tokens", options.tokens, "of each answer")->capture_default_str();
  app.add_option("--budgets", options.budgets, "as --attn-budget, by commas")->delimiter(',')->capture_default_str();
  app.add_option("--methods", options.methods, "NAME[/KEY=VALUE...] by commas")->delimiter(',')->capture_default_str();
  app.add_option("--drafts", options.drafts, "at a time, by commas; 0: adaptive")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "times that every arm runs on a prompt")->capture_default_str();
  app.add_option("--skip", options.skip, "tokens of the text to leave out first")->capture_default_str();
  app.add_option("--kv", options.kv, "type of the cache")->capture_default_str();
  app.add_option("--threads", options.threads, "0: one for each core that may be used")->capture_default_str();
  app.add_option("--json", options.json, "the results, written after every prompt");
  const std::span<char*> all(words, static_cast<std::size_t>(count));
  return glimpse::bench::run_program(app, all,
                                     [&] { glimpse::bench::run(options, glimpse::bench::command_line(all)); });
}
