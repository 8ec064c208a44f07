// Whether a method still finds what is hidden in a long prompt: needles, variable chains and passkeys, greedily
// answered, the prompt prefilled once for each kind of prefill and forked for every method and budget.
//
//   retrieval_bench MODEL --filler TEXT [--tasks single,multikey,vt,passkey] [--lengths 8192,16384] [--prompts 40]
//                   [--budgets 512,1024,10%] [--methods all] [--variants] [--reserve 512] [--spare 24] [--tail 0]
//                   [--sparse-prefill 10%] [--profile FILE] [--seed 1] [--kv bf16] [--threads N]
//                   [--json FILE] [--answers FILE] [--skip 0] [--resume FILE,FILE]
//
// A prompt has length - reserve tokens. An answer may have as many tokens as what is wanted and --spare more; it ends
// with the first that completes what is wanted. --tail runs the last tokens of the prompt through the method, as
// TidalDecode's evaluation does; else its first token comes from the prefill, as in `glimpse run`. --json gets a row
// for each task, length, method and budget; --answers gets every answer, which is what --resume reads. Both are written
// after every prompt. Runs over other prompts (--skip) or methods come together with --resume, and --prompts 0 only
// adds up.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <random>

#include "bench/bench_report.h"
#include "bench/method_arms.h"
#include "bench/prefilled_prompt.h"
#include "bench/retrieval_results.h"
#include "glimpse/base/error.h"
#include "glimpse/cli/setup.h"
#include "glimpse/evaluate/tasks/prompts.h"

namespace glimpse::bench {
namespace {

using evaluate::PromptMaker;
using evaluate::RetrievalPrompt;
using evaluate::Task;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string model, filler, kv = "bf16", profile, sparse_prefill, json, answers;
  std::vector<std::string> tasks{"single", "multikey", "vt", "passkey"}, budgets{"512", "1024", "10%"}, methods{"all"},
      resume;
  std::vector<std::int64_t> lengths{8192, 16384};
  std::int64_t prompts = 40, skip = 0, reserve = 512, spare = 24, tail = 0, seed = 1;
  int threads = 0;
  bool variants = false;
};

/// The same prompt for every method, whatever else a run measures.
std::uint64_t prompt_seed(std::int64_t seed, Task task, std::int64_t length, std::int64_t prompt) {
  std::seed_seq mix{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(task),
                    static_cast<std::uint32_t>(length), static_cast<std::uint32_t>(prompt)};
  std::array<std::uint32_t, 2> words{};
  mix.generate(words.begin(), words.end());
  return words[0] | static_cast<std::uint64_t>(words[1]) << 32;
}

class Retrieval {
 public:
  Retrieval(engine::Engine& engine, const Options& options, const std::vector<Arm>& arms, Progress& progress)
      : engine_(engine),
        options_(options),
        arms_(arms),
        progress_(progress),
        maker_(engine.tokenizer(), cli::read_text(options.filler)) {}

  /// Every arm that `results` lacks on this prompt. Returns how many it ran.
  int run(Task task, std::int64_t length, std::int64_t number, RetrievalResults& results) {
    std::vector<Arm> todo;
    const auto key_of = [&](const Arm& arm) {
      return AnswerKey{std::string(name(task)), length, number, arm.method, arm.budget};
    };
    for (const Arm& arm : arms_) {
      if (arm.refused.empty() && !results.has(key_of(arm))) todo.push_back(arm);
    }
    if (todo.empty()) return 0;
    const RetrievalPrompt quiz =
        maker_.make(task, length - options_.reserve, prompt_seed(options_.seed, task, length, number));
    std::vector<Token> tokens = quiz.tokens;
    const auto tail = tokens.size() - static_cast<std::size_t>(options_.tail);
    tail_.assign(tokens.begin() + static_cast<std::ptrdiff_t>(tail), tokens.end());
    tokens.resize(tail);
    most_tokens_ = options_.spare;
    for (const std::string& part : quiz.wanted) {
      most_tokens_ +=
          static_cast<std::int64_t>(engine_.tokenizer().encode(" " + part, text::Special::as_text, false).size());
    }
    PrefilledPrompt prompt(engine_, std::move(tokens), todo,
                           [&](const std::string& kind, std::int64_t count, double seconds) {
                             progress_.note(fmt::format("  prefill ({}) of {} tokens: {:.1f} s", kind, count, seconds));
                           });
    for (const Arm& arm : todo) results.add(key_of(arm), answer(prompt, arm, quiz.wanted));
    return static_cast<int>(todo.size());
  }

 private:
  Answer answer(PrefilledPrompt& prompt, const Arm& arm, const std::vector<std::string>& wanted) {
    PrefilledPrompt::Start start = prompt.start(arm);
    start.sequence.reset_stats();
    Answer answer;
    const auto begin = Clock::now();
    const auto decode = [&](Token token) {
      ++answer.steps;
      return arg_max(start.sequence.decode(token));
    };
    Token next = arg_max(start.logits);
    for (const Token token : tail_) next = decode(token);
    for (std::int64_t made = 1; !engine_.tokenizer().ends_generation(next); ++made) {
      answer.text += engine_.tokenizer().piece(next);
      answer.share = evaluate::share_found(answer.text, wanted);
      if (made == most_tokens_) break;
      const Token before = next;
      next = decode(before);
      // Digits may go on: a number is whole when the next token does not lengthen it.
      if (!answer.right()) continue;
      answer.share = evaluate::share_found(answer.text + engine_.tokenizer().piece(next), wanted);
      if (answer.right()) break;
    }
    answer.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    answer.kept_ratio = start.sequence.stats().kept_ratio();
    return answer;
  }

  engine::Engine& engine_;
  const Options& options_;
  const std::vector<Arm>& arms_;
  Progress& progress_;
  PromptMaker maker_;
  std::vector<Token> tail_;
  std::int64_t most_tokens_ = 0;  ///< of an answer
};

/// What runs must share for their answers to add up.
Json setup_of(const Options& options) {
  const auto file = [](const std::string& path) { return std::filesystem::path(path).filename().string(); };
  return {{"model", file(options.model)},
          {"filler", file(options.filler)},
          {"reserve", options.reserve},
          {"spare", options.spare},
          {"tail", options.tail},
          {"seed", options.seed},
          {"kv_type", options.kv},
          {"profile", file(options.profile)},
          {"sparse_prefill", options.sparse_prefill}};
}

Json json_of(const Cell& cell) {
  return {{"task", cell.task},   {"length", cell.length}, {"method", cell.method},    {"budget", cell.budget},
          {"asked", cell.count}, {"right", cell.right},   {"low", cell.interval.low}, {"high", cell.interval.high},
          {"lost", cell.lost},   {"gained", cell.gained}, {"share", cell.share},      {"kept_ratio", cell.kept_ratio}};
}

void add_sources(const Json& added, Json& sources) {
  for (const Json& source : added) {
    if (std::find(sources.begin(), sources.end(), source) == sources.end()) sources.push_back(source);
  }
}

void read_results(const std::string& path, const Json& setup, RetrievalResults& results, Json& sources) {
  const Json report = Json::parse(cli::read_text(path), nullptr, /*allow_exceptions=*/false);
  if (!report.is_object() || !report.contains("setup") || !report.contains("answers")) {
    throw UserError(fmt::format("'{}' holds no answers of retrieval_bench; give a file that --answers wrote", path));
  }
  for (const auto& [key, value] : setup.items()) {
    if (report["setup"].contains(key) && report["setup"][key] == value) continue;
    throw UserError(fmt::format("'{}' has another {}: {}, this run {}; answers of one set-up alone add up", path, key,
                                report["setup"].value(key, Json()).dump(), value.dump()));
  }
  results.read(report["answers"].dump(), path);
  const Json from = report.value("sources", Json());
  if (!from.is_array()) throw UserError(fmt::format("'{}' names its sources, but not as a list", path));
  add_sources(from, sources);
}

void print_table(const std::vector<Cell>& cells) {
  fmt::print("| task | length | method | budget | right | accuracy | 95 % | lost / gained | kept |\n");
  fmt::print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const Cell& cell : cells) {
    fmt::print("| {} | {} | {} | {} | {}/{} | {:.1f} | {:.1f} to {:.1f} | {} / {} | {:.4f} |\n", cell.task, cell.length,
               cell.method, cell.budget, cell.right, cell.count,
               100.0 * static_cast<double>(cell.right) / static_cast<double>(cell.count), 100 * cell.interval.low,
               100 * cell.interval.high, cell.lost, cell.gained, cell.kept_ratio);
  }
  std::fflush(stdout);
}

void check_options(const Options& options) {
  require_range("--prompts", options.prompts, 0, 1 << 20);
  require_range("--skip", options.skip, 0, 1 << 20);
  require_range("--reserve", options.reserve, 0, 1 << 20);
  require_range("--spare", options.spare, 1, 4096);
  require_range("--tail", options.tail, 0, 64);
  require_range("--seed", options.seed, 0, INT64_C(0xffffffff));
  for (const std::string& task : options.tasks) evaluate::parse_task(task);
  for (const std::int64_t length : options.lengths) {
    require_range("--lengths", length, options.reserve + 128, 1 << 22);
  }
  const auto& resume = options.resume;
  if (!options.answers.empty() && std::filesystem::exists(options.answers) &&
      std::find(resume.begin(), resume.end(), options.answers) == resume.end()) {
    throw UserError(
        fmt::format("'{0}' is there already; go on with --resume {0}, or give another name", options.answers));
  }
}

void run(const Options& options, const std::string& command) {
  check_options(options);
  engine::EngineOptions how;
  how.model = options.model;
  // An answer may outgrow the reserve: a passkey has about 100 tokens.
  how.context = *std::max_element(options.lengths.begin(), options.lengths.end()) - options.reserve +
                std::max<std::int64_t>(options.reserve, 256 + options.spare);
  how.sequences = PrefilledPrompt::kSequences;
  how.threads = options.threads;
  how.kv_type = parse_kv_type(options.kv);
  engine::Engine engine(how);

  std::optional<plan::Profile> profile;
  if (!options.profile.empty()) profile = plan::parse_profile(cli::read_text(options.profile));
  ArmRequest request{options.methods, options.budgets, options.variants};
  if (!options.sparse_prefill.empty()) request.sparse_prefill = options.sparse_prefill;
  if (profile) request.profile = &*profile;
  std::vector<std::string> warnings, methods;
  const std::vector<Arm> arms = make_arms(engine.shape(), request, warnings);
  for (const Arm& arm : arms) methods.push_back(arm.method);

  const Json setup = setup_of(options);
  RetrievalResults results;
  Json sources = Json::array();
  for (const std::string& path : options.resume) read_results(path, setup, results, sources);
  Report report(options.json, command, engine, options.model);
  if (options.prompts > 0) add_sources(Json::array({report.source()}), sources);
  for (const auto& [key, value] : setup.items()) {
    if (key != "model") report.set(key, value);
  }
  std::string commits;  // of all answers; the head's is that of the run that wrote the file
  for (const Json& source : sources) {
    const auto commit = source.value("commit", std::string("unknown"));
    if ((" " + commits + " ").find(" " + commit + " ") != std::string::npos) continue;
    commits += (commits.empty() ? "" : " ") + commit;
  }
  report.set("commits", commits);
  const auto save = [&] {
    report.clear_rows();
    for (const Cell& cell : results.cells(methods)) report.add(json_of(cell));
    for (const Arm& arm : arms) {
      if (arm.refused.empty()) continue;
      report.add({{"method", arm.method}, {"budget", arm.budget}, {"refused", arm.refused}});
    }
    report.write();
    if (options.answers.empty()) return;
    const Json all{{"setup", setup}, {"sources", sources}, {"answers", Json::parse(results.json())}};
    write_file(options.answers, all.dump(1, ' ', false, Json::error_handler_t::replace));
  };
  save();

  double work = 0;
  for (const std::int64_t length : options.lengths) {
    work += static_cast<double>(length * options.prompts * static_cast<std::int64_t>(options.tasks.size()));
  }
  Progress progress(work);
  for (const std::string& line : warnings) progress.note("warning: " + line);
  for (const Arm& arm : arms) {
    if (!arm.refused.empty()) progress.note(fmt::format("{}: refused: {}", arm.label(), arm.refused));
  }
  Retrieval retrieval(engine, options, arms, progress);
  // Prompt by prompt over all cells, so that a run that is stopped has some of everything.
  for (std::int64_t number = options.skip; number < options.skip + options.prompts; ++number) {
    for (const std::int64_t length : options.lengths) {
      for (const std::string& task : options.tasks) {
        const auto start = Clock::now();
        const int ran = retrieval.run(evaluate::parse_task(task), length, number, results);
        if (ran == 0) {
          progress.drop(static_cast<double>(length));
          continue;
        }
        save();
        const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
        progress.done(static_cast<double>(length),
                      fmt::format("{} {} prompt {}: {} answers, {:.1f} s", task, length, number, ran, seconds));
      }
    }
  }
  print_table(results.cells(methods));
}

}  // namespace
}  // namespace glimpse::bench

int main(int count, char** words) {
  glimpse::bench::Options options;
  CLI::App app("whether sparse attention finds what is hidden in a long prompt");
  app.add_option("model", options.model, "a GGUF file")->required();
  app.add_option("--filler", options.filler, "UTF-8 prose around what is hidden")->required();
  const auto list = [&](const char* flag, auto& field, const char* help) {
    app.add_option(flag, field, help)->delimiter(',')->capture_default_str();
  };
  const auto value = [&](const char* flag, auto& field, const char* help) {
    app.add_option(flag, field, help)->capture_default_str();
  };
  list("--tasks", options.tasks, "single, multikey, vt, passkey");
  list("--lengths", options.lengths, "tokens of context; a prompt has the reserve less");
  list("--budgets", options.budgets, "as --attn-budget");
  list("--methods", options.methods, "NAME[/KEY=VALUE...], or all");
  list("--resume", options.resume, "what --answers of other runs of this set-up wrote; it counts as done");
  app.add_flag("--variants", options.variants, "the papers' ablations too");
  value("--prompts", options.prompts, "of each task and length; 0: only add up what --resume has");
  value("--skip", options.skip, "number of the first prompt");
  value("--reserve", options.reserve, "tokens of the length that the prompt leaves");
  value("--spare", options.spare, "tokens that an answer may have beside what is wanted");
  value("--tail", options.tail, "last tokens of the prompt that run through the method");
  value("--sparse-prefill", options.sparse_prefill, "one budget for all sparse prefills; else each its own");
  value("--profile", options.profile, "a profile, for the methods that use one");
  value("--seed", options.seed, "of the prompts");
  value("--kv", options.kv, "type of the cache");
  value("--threads", options.threads, "0: one for each core that may be used");
  value("--json", options.json, "the results, written after every prompt");
  value("--answers", options.answers, "every answer, for --resume, written after every prompt");
  const std::span<char*> all(words, static_cast<std::size_t>(count));
  return glimpse::bench::run_program(app, all,
                                     [&] { glimpse::bench::run(options, glimpse::bench::command_line(all)); });
}
