// What `eval needle`, `passkey`, `ruler`, `copy` and `scoreboard` have in common: which prompts, which arms, and the
// run. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "glimpse/cli/arm.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/engine/engine.h"
#include "glimpse/evaluate/examiner.h"

namespace glimpse::cli {

struct Exam {
  std::vector<Arm> arms;
  std::vector<std::string> tasks;     ///< as written
  std::vector<std::int64_t> lengths;  ///< ascending
  std::vector<int> depths;            ///< percent, ascending; of the task "needle"
  std::int64_t examples = 0;          ///< prompts of each task, length and depth
  std::string filler;                 ///< prose of the user's own; empty: generated

  std::vector<std::string> arm_names() const;
  /// Rows that its cells and its sums over tasks make.
  std::int64_t rows() const;
};

/// `tasks`: a list as it would be typed. Throws UserError before a model is loaded.
Exam parse_exam(const Arguments& arguments, std::string_view tasks);

/// Context and room for it.
engine::EngineOptions exam_engine_options(const Arguments& arguments, const Exam& exam);

/// The arms at each length: "auto" may take another method at another one. Throws UserError for an arm that the engine
/// cannot run.
std::map<std::int64_t, std::vector<evaluate::PlannedArm>> exam_plans(const Arguments& arguments, const Exam& exam,
                                                                     engine::Engine& engine);

/// What a run asks, and who is told.
struct ExamRun {
  const Exam& exam;
  const std::map<std::int64_t, std::vector<evaluate::PlannedArm>>& plans;
  const evaluate::Answers& known;  ///< what needs not be asked again; may grow by `on_answer`
  evaluate::OnAnswer on_answer;
};

/// Asks prompt by prompt over all tasks and lengths, so that a run that is stopped has some of everything. False:
/// Ctrl-C ended it. Throws UserError for a length that is too short for a task, before anything is run.
bool run_exam(const Arguments& arguments, engine::Engine& engine, const ExamRun& run, const InterruptGuard& interrupt);

}  // namespace glimpse::cli
