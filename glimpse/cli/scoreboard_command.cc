// glimpse eval scoreboard: arms by tasks and lengths, in a folder that a later run goes on with.
#include <fmt/format.h>

#include <filesystem>
#include <span>

#include "glimpse/base/checksum.h"
#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/base/whole_file.h"
#include "glimpse/cli/answer_file.h"
#include "glimpse/cli/auto_method.h"
#include "glimpse/cli/calibration.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/picture.h"
#include "glimpse/cli/score_report.h"
#include "glimpse/cli/setup.h"
#include "glimpse/plan/profile.h"

namespace glimpse::cli {
namespace {

/// What prompts and answers are a function of; raised when the same seed gives other prompts.
constexpr int kPromptVersion = 1;

std::uint64_t checksum_of(std::string_view text) {
  return checksum(std::as_bytes(std::span(text)));
}

AnswerFile::Facts facts_of(const Arguments& arguments, const Exam& exam, const engine::Engine& engine) {
  return {{"model", plan::fingerprint_text(engine.fingerprint())},
          {"seed", fmt::format("{}", arguments.seed)},
          {"prompts", fmt::format("{}", kPromptVersion)},
          {"text", exam.filler.empty() ? "generated" : fmt::format("{:016x}", checksum_of(exam.filler))},
          {"KV type", std::string(name(engine.kv_type()))},
          {"prefill chunk", fmt::format("{}", arguments.prefill_chunk)},
          {"device", arguments.device}};
}

std::filesystem::path folder_of(const Arguments& arguments) {
  if (arguments.output.empty()) throw UserError("no output: give -o DIR, a folder for the scoreboard");
  const std::filesystem::path folder(arguments.output);
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (!std::filesystem::is_directory(folder)) {
    throw UserError(
        fmt::format("-o '{}': it is no folder and cannot be made one; give another name", printable(arguments.output)));
  }
  return folder;
}

void check_size(const Exam& exam) {
  if (exam.rows() <= kMostScoreRows) return;
  throw UserError(
      fmt::format("the scoreboard would have {} rows and holds at most {}; give fewer --arms, --tasks, --lengths or "
                  "--depths",
                  exam.rows(), kMostScoreRows));
}

void write_files(const std::filesystem::path& folder, const ScoreReport& report) {
  const std::string json = scoreboard_json(report);
  replace_file(folder / "scoreboard.json", json);
  replace_file(folder / "scoreboard.md", scoreboard_markdown(report));
  replace_file(folder / "scoreboard.html", scoreboard_page(json));
}

/// What "auto" took, by length.
std::map<std::string, std::string> taken_by(const Arguments& arguments, const Exam& exam,
                                            const engine::Engine& engine) {
  const PlanModel model = plan_model(engine);
  std::map<std::string, std::string> taken;
  for (const auto& arm : exam.arms) {
    if (arm.policy != kAuto) continue;
    for (const std::int64_t length : exam.lengths) {
      taken[fmt::format("{} at {}", arm.written, length)] =
          policies::arm_text(auto_candidates(arguments, model, length).front());
    }
  }
  return taken;
}

}  // namespace

int eval_scoreboard_command(const Arguments& arguments) {
  set_log(arguments);
  const Exam exam = parse_exam(arguments, arguments.tasks);
  check_size(exam);
  const engine::EngineOptions options = exam_engine_options(arguments, exam);
  const std::filesystem::path folder = folder_of(arguments);
  if (!calibrate_first(arguments, exam.arms)) return kExitInterrupted;
  engine::Engine engine(options);
  const auto plans = exam_plans(arguments, exam, engine);
  AnswerFile file(folder / "answers.jsonl", facts_of(arguments, exam, engine));
  for (const auto& [length, arms] : plans) {
    for (const evaluate::PlannedArm& arm : arms) file.set_plan(arm.name, length, checksum_of(plan::to_json(arm.plan)));
  }
  if (file.answers().size() > 0 && !arguments.quiet) {
    print_note(fmt::format("going on with {} answers of '{}'", file.answers().size(),
                           printable((folder / "answers.jsonl").string())));
  }
  const InterruptGuard interrupt;
  const bool complete =
      run_exam(arguments, engine,
               {exam, plans, file.answers(),
                [&](const evaluate::AnswerKey& key, const evaluate::Answer& answer) { file.add(key, answer); }},
               interrupt);
  ScoreReport report = score_report(arguments, exam, engine, file.answers());
  report.complete = complete;
  report.fingerprint = plan::fingerprint_text(engine.fingerprint());
  report.taken = taken_by(arguments, exam, engine);
  if (!report.cells.empty()) write_files(folder, report);
  if (!complete) {
    print_note("interrupted: the same command goes on where this one was");
    return kExitInterrupted;
  }
  print(score_table(report));
  return kExitOk;
}

}  // namespace glimpse::cli
