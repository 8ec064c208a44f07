// glimpse calibrate: what methods must know of a model, as a profile and a table.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/calibrate/calibrate.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/cli/whole_file.h"

namespace glimpse::cli {
namespace {

std::string output_of(const Arguments& arguments) {
  if (!arguments.output.empty()) return arguments.output;
  return std::filesystem::path(arguments.model).stem().string() + ".profile.json";
}

std::string grade_text(const calibrate::Grade& grade) {
  return fmt::format("keeps {:.0f} % of dense attention's answers, KL {:.4f}", 100 * grade.answers, grade.divergence);
}

std::string layers_line(std::string_view method, std::string_view what, const calibrate::Choice& choice) {
  return fmt::format("{:<14}{} {}: {} ({} tried)\n", method, what, fmt::join(choice.layers, ", "),
                     grade_text(choice.grade), choice.candidates.size());
}

std::string choices_text(const calibrate::Calibration& found) {
  std::string text = fmt::format("prompts of {} tokens; layers decided at {}\n", found.length, found.budget);
  if (found.tidal) text += layers_line("tidal", "selects again in layer", *found.tidal);
  if (found.lessismore) text += layers_line("lessismore", "selects again in layer", *found.lessismore);
  if (found.omnikv) text += layers_line("omnikv", "filters in layers", *found.omnikv);
  if (found.kascade) {
    text += fmt::format("{:<14}anchors in layers {}: {} ({} tried); {:.0f} % with prompts of four keys read sparsely\n",
                        "kascade", fmt::join(found.kascade->profile.anchors, ", "), grade_text(found.kascade->grade),
                        found.kascade->candidates.size(), 100 * found.kascade->own.answers);
  }
  if (found.heads) {
    text += fmt::format("{:<14}{} KV heads choose: {} ({} tried)\n", "lychee-decode", found.heads->chosen,
                        grade_text(found.heads->grade), found.heads->tried);
  }
  return text;
}

std::string percent(double share) {
  return fmt::format("{:.0f} %", 100 * share);
}

/// A row for each method and budget, a column for each kind of task that has right answers.
std::string table_text(const std::vector<calibrate::KeptAnswers>& rows) {
  std::vector<std::string> tasks;
  for (const calibrate::KeptAnswers& row : rows) {
    if (row.task != "prose" && std::find(tasks.begin(), tasks.end(), row.task) == tasks.end())
      tasks.push_back(row.task);
  }
  std::string text = "| method | budget |", line = "| --- | ---: |", dense = "| full | |";
  for (const std::string& task : tasks) {
    text += fmt::format(" {} |", task);
    line += " ---: |";
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const auto& other) { return other.task == task; });
    dense += fmt::format(" {} |", percent(row->dense));
  }
  text += " KL to dense | of prose | coverage |\n" + line + " ---: | ---: | ---: |\n" + dense + " 0 | 0 | 1 |\n";
  for (std::size_t i = 0; i < rows.size();) {
    std::map<std::string, calibrate::KeptAnswers> of;  // of one method at one budget, by task
    const std::size_t first = i;
    double divergence = 0, coverage = 0;
    for (; i < rows.size() && rows[i].method == rows[first].method && rows[i].budget == rows[first].budget; ++i) {
      of.emplace(rows[i].task, rows[i]);
      coverage += rows[i].coverage;
      if (rows[i].task != "prose") divergence += rows[i].divergence;
    }
    text += fmt::format("| {} | {} |", rows[first].method, rows[first].budget);
    for (const std::string& task : tasks)
      text += of.contains(task) ? fmt::format(" {} |", percent(of[task].answers)) : " |";
    text += fmt::format(" {:.4f} | {:.4f} | {:.3f} |\n",
                        divergence / static_cast<double>(std::max<std::size_t>(tasks.size(), 1)),
                        of["prose"].divergence, coverage / static_cast<double>(i - first));
  }
  return text;
}

/// A file that is there and no profile was hardly meant.
void refuse_other_file(const std::string& path) {
  std::error_code failed;
  if (!std::filesystem::is_regular_file(path, failed) || std::filesystem::file_size(path, failed) == 0) return;
  constexpr std::uintmax_t kMost = std::uintmax_t{64} << 20;
  if (std::filesystem::file_size(path, failed) <= kMost && plan::is_profile_text(read_file(path))) return;
  throw UserError(fmt::format("'{}' is there and is no profile; give another name with -o", printable(path)));
}

calibrate::CalibrationOptions calibration_options(const Arguments& arguments) {
  calibrate::CalibrationOptions options;
  options.part = calibrate::parse_part(arguments.part);
  options.study.seed = static_cast<std::uint64_t>(arguments.seed);
  if (const auto file = text_file(arguments)) options.study.text = read_text(*file);
  return options;
}

}  // namespace

int calibrate_command(const Arguments& arguments) {
  set_log(arguments);
  engine::EngineOptions engine_how = engine_options(arguments);
  engine_how.sequences = calibrate::kStudySequences;
  calibrate::CalibrationOptions options = calibration_options(arguments);
  const std::string path = output_of(arguments);
  refuse_other_file(path);
  WholeFile file(path);
  engine::Engine engine(engine_how);
  const std::int64_t made_for = engine.shape().context;
  if (made_for < engine.context() && arguments.typed.contains("--ctx-size")) {
    throw UserError(
        fmt::format("-c {}: the model was made for {} tokens; give at most that", engine.context(), made_for));
  }
  options.study.length = std::min(engine.context(), made_for) - calibrate::kAnswerRoom;

  ProgressBar progress("calibrate", "tokens", !arguments.quiet);
  const InterruptGuard interrupt;
  options.on_progress = [&](std::int64_t done, std::int64_t total) {
    progress.update(done, total);
    return !interrupt.requested();
  };
  const std::optional<calibrate::Calibration> found = calibrate::calibrate(engine, options);
  progress.clear();
  if (!found) {
    print_note(fmt::format("interrupted; '{}' is not written", printable(path)));
    return kExitInterrupted;
  }
  file.finish(plan::to_json(found->profile));
  std::string text = choices_text(*found);
  if (found->profile.retrieval) {
    text += plan::explain({.model = found->profile.model, .retrieval = found->profile.retrieval});
  }
  print(text + "\n" + table_text(found->kept) +
        fmt::format("\nprofile in '{}', for --attn-profile\n", printable(path)));
  return kExitOk;
}

}  // namespace glimpse::cli
