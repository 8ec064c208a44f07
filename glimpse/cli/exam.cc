#include "glimpse/cli/exam.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/cli/auto_method.h"
#include "glimpse/cli/idle.h"
#include "glimpse/cli/setup.h"
#include "glimpse/evaluate/tasks/prose.h"

namespace glimpse::cli {
namespace {

constexpr int kSentences = 900;
constexpr std::int64_t kLeastLength = 512, kMostLength = 1 << 24;

void refuse_twice(std::string_view what, const std::vector<std::string>& words) {
  std::set<std::string> seen;
  for (const std::string& word : words) {
    if (!seen.insert(word).second) {
      throw UserError(fmt::format("{} '{}' is given twice; leave one out", what, excerpt(word)));
    }
  }
}

/// Depths of a task; one that is none for what has no depth.
std::vector<std::optional<int>> depths_of(const Exam& exam, const std::string& task) {
  if (task != evaluate::kNeedle) return {std::nullopt};
  return {exam.depths.begin(), exam.depths.end()};
}

/// All prompts, in the order in which they are asked; `arm` is empty.
std::vector<evaluate::AnswerKey> keys_of(const Exam& exam) {
  std::vector<evaluate::AnswerKey> keys;
  for (std::int64_t number = 0; number < exam.examples; ++number) {
    for (const std::int64_t length : exam.lengths) {
      for (const std::string& task : exam.tasks) {
        for (const std::optional<int> depth : depths_of(exam, task)) keys.push_back({task, length, depth, number, ""});
      }
    }
  }
  return keys;
}

/// Refuses a length before anything is run.
void require_prompt(const evaluate::Examiner& examiner, const evaluate::AnswerKey& key) {
  try {
    examiner.prompt_of(key);
  } catch (const UserError& error) {
    throw UserError(fmt::format("--lengths {}, of which {} are the answer's: {}", key.length, evaluate::kAnswerTokens,
                                error.what()));
  }
}

}  // namespace

std::vector<std::string> Exam::arm_names() const {
  std::vector<std::string> names;
  for (const Arm& arm : arms) names.push_back(arm.written);
  return names;
}

std::int64_t Exam::rows() const {
  std::size_t cells = 1;
  for (const std::string& task : tasks) cells += depths_of(*this, task).size();
  return static_cast<std::int64_t>(cells * lengths.size() * arms.size());
}

Exam parse_exam(const Arguments& arguments, std::string_view tasks) {
  Exam exam;
  exam.arms = parse_arms(arguments.arms);
  refuse_twice("--arms: the arm", exam.arm_names());
  exam.tasks = split_commas(tasks);
  for (const std::string& task : exam.tasks) evaluate::task_of(task);
  refuse_twice("--tasks: the task", exam.tasks);
  exam.lengths = parse_numbers("--lengths", arguments.lengths, kLeastLength, kMostLength);
  if (std::find(exam.tasks.begin(), exam.tasks.end(), evaluate::kNeedle) != exam.tasks.end()) {
    const auto depths = parse_numbers("--depths", arguments.depths, 0, 100);
    exam.depths.assign(depths.begin(), depths.end());
  }
  exam.examples = arguments.examples;
  if (const auto file = text_file(arguments)) exam.filler = read_text(*file);
  check_profile(arguments);
  return exam;
}

engine::EngineOptions exam_engine_options(const Arguments& arguments, const Exam& exam) {
  engine::EngineOptions options = engine_options(arguments);
  options.context = exam.lengths.back();
  options.sequences = evaluate::kExamSequences;
  return options;
}

std::map<std::int64_t, std::vector<evaluate::PlannedArm>> exam_plans(const Arguments& arguments, const Exam& exam,
                                                                     engine::Engine& engine) {
  const PlanModel model = plan_model(engine);
  std::map<std::int64_t, std::vector<evaluate::PlannedArm>> plans;
  const std::vector<plan::Plan> made = make_arm_plans(arguments, exam.arms, model, exam.lengths.front());
  refuse_idle(arguments, made);
  for (const std::int64_t length : exam.lengths) {
    std::vector<evaluate::PlannedArm>& arms = plans[length];
    for (std::size_t i = 0; i < made.size(); ++i) {
      const bool again = exam.arms[i].policy == kAuto && length != exam.lengths.front();
      arms.push_back({exam.arms[i].written, again ? make_auto_plan(arguments, model, length) : made[i]});
      engine.open(arms.back().plan);
    }
  }
  return plans;
}

bool run_exam(const Arguments& arguments, engine::Engine& engine, const ExamRun& run, const InterruptGuard& interrupt) {
  const Exam& exam = run.exam;
  const auto seed = static_cast<std::uint64_t>(arguments.seed);
  const evaluate::PromptMaker prompts(engine.tokenizer(),
                                      exam.filler.empty() ? evaluate::generated_prose(kSentences, seed) : exam.filler);
  evaluate::Examiner examiner(engine, prompts, seed);
  struct Todo {
    evaluate::AnswerKey key;
    std::vector<evaluate::PlannedArm> arms;
  };
  std::vector<Todo> todo;
  std::int64_t work = 0;
  for (evaluate::AnswerKey key : keys_of(exam)) {
    if (key.number == 0) require_prompt(examiner, key);
    Todo next{key, {}};
    for (const evaluate::PlannedArm& arm : run.plans.at(key.length)) {
      key.arm = arm.name;
      if (!run.known.has(key)) next.arms.push_back(arm);
    }
    if (next.arms.empty()) continue;
    work += evaluate::work_of({next.key, next.arms});
    todo.push_back(std::move(next));
  }
  ProgressBar bar("eval", "tokens", !arguments.quiet);
  const evaluate::Progress::Callback tell = [&](std::int64_t done, std::int64_t total) {
    bar.update(done, total);
    return !interrupt.requested();
  };
  evaluate::Progress progress(tell, work);
  try {
    for (const Todo& next : todo) examiner.ask({next.key, next.arms}, progress, run.on_answer);
  } catch (const evaluate::Stopped&) {
    return false;
  }
  return true;
}

}  // namespace glimpse::cli
