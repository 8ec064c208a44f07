// glimpse eval needle, passkey, ruler, copy: arms answer generated prompts.
#include "glimpse/base/error.h"
#include "glimpse/cli/calibration.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/score_report.h"
#include "glimpse/cli/setup.h"

namespace glimpse::cli {
namespace {

int eval_tasks(const Arguments& arguments, std::string_view tasks) {
  set_log(arguments);
  const Exam exam = parse_exam(arguments, tasks);
  const engine::EngineOptions options = exam_engine_options(arguments, exam);
  if (!calibrate_first(arguments, exam.arms)) return kExitInterrupted;
  engine::Engine engine(options);
  const auto plans = exam_plans(arguments, exam, engine);
  const InterruptGuard interrupt;
  evaluate::Answers answers;
  const bool complete =
      run_exam(arguments, engine,
               {exam, plans, answers,
                [&](const evaluate::AnswerKey& key, const evaluate::Answer& answer) { answers.add(key, answer); }},
               interrupt);
  return print_scores(arguments, exam, engine, {answers, complete});
}

}  // namespace

int eval_needle_command(const Arguments& arguments) {
  return eval_tasks(arguments, evaluate::kNeedle);
}

int eval_passkey_command(const Arguments& arguments) {
  return eval_tasks(arguments, "passkey");
}

int eval_ruler_command(const Arguments& arguments) {
  return eval_tasks(arguments, arguments.tasks);
}

int eval_copy_command(const Arguments& arguments) {
  return eval_tasks(arguments, "copy");
}

}  // namespace glimpse::cli
