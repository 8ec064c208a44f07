// What an evaluation of arms has to say: a table for the terminal, and a scoreboard's files. Values; any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "glimpse/cli/exam.h"
#include "glimpse/cli/json_output.h"

namespace glimpse::cli {

struct ScoreReport {
  BenchHeader header;
  std::string fingerprint;  ///< of the model's file
  std::int64_t seed = 0, examples = 0;
  std::string filler;    ///< a file's name; empty: generated prose
  bool complete = true;  ///< false: the run was interrupted
  std::vector<evaluate::Cell> cells, overall;
  std::map<std::string, std::string> taken;  ///< what the arm "auto" took, by "ARM at LENGTH"
};

/// Cells of the exam, from its answers.
ScoreReport score_report(const Arguments& arguments, const Exam& exam, const engine::Engine& engine,
                         const evaluate::Answers& answers);

/// What a command found; borrowed.
struct Found {
  const evaluate::Answers& answers;
  bool complete = true;  ///< false: Ctrl-C ended it
};
/// Prints the table, or JSON where that was asked for; returns the exit code.
int print_scores(const Arguments& arguments, const Exam& exam, const engine::Engine& engine, const Found& found);

/// Rows of cells, then those over all tasks where there are several.
std::string score_table(const ScoreReport& report);
/// One line of JSON: {"model", "seed", "examples", "rows": [{...}]}.
std::string score_json(const ScoreReport& report);

/// Rows that a scoreboard may have, so that its JSON stays below 300 KB.
inline constexpr std::int64_t kMostScoreRows = 2800;
/// The file scoreboard.json, in the schema of bench/results; `columns` names the values of each row.
std::string scoreboard_json(const ScoreReport& report);
std::string scoreboard_markdown(const ScoreReport& report);

}  // namespace glimpse::cli
