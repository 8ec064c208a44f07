// glimpse eval longbench: arms answer the user's own questions, a JSON object a line.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/cli/calibration.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/score_report.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/user_prompts.h"

namespace glimpse::cli {
namespace {

std::vector<UserPrompt> read_prompts(const Arguments& arguments) {
  const std::optional<std::string> file = text_file(arguments);
  if (!file) throw UserError("no questions: give -f FILE, a JSON object a line (-: standard input)");
  std::optional<evaluate::Metric> metric;
  if (arguments.metric) metric = evaluate::parse_metric(*arguments.metric);
  const std::int64_t most = arguments.examples > 0 ? arguments.examples : std::numeric_limits<std::int64_t>::max();
  return parse_of(fmt::format("'{}'", printable(*file)), read_all(*file, fmt::format("'{}'", *file)),
                  [&](std::string_view text) { return parse_user_prompts(text, metric, most); });
}

/// Of one length, that of -c; its tasks are those of the lines, in their order.
Exam exam_of(const Arguments& arguments, const std::vector<UserPrompt>& prompts) {
  Exam exam;
  exam.arms = parse_arms(arguments.arms);
  exam.lengths = {arguments.window};
  exam.examples = std::ssize(prompts);
  for (const UserPrompt& prompt : prompts) {
    if (std::find(exam.tasks.begin(), exam.tasks.end(), prompt.task) == exam.tasks.end()) {
      exam.tasks.push_back(prompt.task);
    }
  }
  check_profile(arguments);
  return exam;
}

}  // namespace

int eval_longbench_command(const Arguments& arguments) {
  set_log(arguments);
  const std::vector<UserPrompt> prompts = read_prompts(arguments);
  const Exam exam = exam_of(arguments, prompts);
  const engine::EngineOptions options = exam_engine_options(arguments, exam);
  if (!calibrate_first(arguments, exam.arms)) return kExitInterrupted;
  engine::Engine engine(options);
  const auto plans = exam_plans(arguments, exam, engine);
  const std::int64_t length = exam.lengths.front();
  const std::vector<evaluate::PlannedArm>& arms = plans.at(length);

  evaluate::Answers answers;
  const evaluate::OnAnswer on_answer = [&](const evaluate::AnswerKey& key, const evaluate::Answer& answer) {
    answers.add(key, answer);
  };
  ProgressBar bar("eval", "tokens", !arguments.quiet);
  const InterruptGuard interrupt;
  const evaluate::Progress::Callback tell = [&](std::int64_t done, std::int64_t total) {
    bar.update(done, total);
    return !interrupt.requested();
  };
  const evaluate::AnswerKey any{"", length, std::nullopt, 0, ""};
  evaluate::Progress progress(tell, evaluate::work_of({any, arms}) * std::ssize(prompts));
  bool complete = true;
  try {
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const evaluate::AnswerKey key{prompts[i].task, length, std::nullopt, static_cast<std::int64_t>(i), ""};
      const auto prompt = render_user_prompt(engine.tokenizer(), prompts[i], length - evaluate::kAnswerTokens);
      evaluate::ask_prompt(engine, {key, arms}, prompt, {progress, on_answer});
    }
  } catch (const evaluate::Stopped&) {
    complete = false;
  }
  bar.clear();
  return print_scores(arguments, exam, engine, {answers, complete});
}

}  // namespace glimpse::cli
