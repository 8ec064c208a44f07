// glimpse calibrate: what methods must know of a model, as a profile and a table.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

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
  return text;
}

std::string table_text(const std::vector<calibrate::KeptAnswers>& rows) {
  std::string text = "| method | budget | task | dense | answers | KL to dense | coverage |\n";
  text += "| --- | ---: | --- | ---: | ---: | ---: | ---: |\n";
  for (const calibrate::KeptAnswers& row : rows) {
    text += fmt::format("| {} | {} | {} | {:.0f} % | {:.0f} % | {:.4f} | {:.4f} |\n", row.method, row.budget, row.task,
                        100 * row.dense, 100 * row.answers, row.divergence, row.coverage);
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
  print(choices_text(*found) +
        (found->profile.retrieval
             ? plan::explain({.model = found->profile.model, .retrieval = found->profile.retrieval})
             : "") +
        "\n" + table_text(found->kept) + fmt::format("\nprofile in '{}', for --attn-profile\n", printable(path)));
  return kExitOk;
}

}  // namespace glimpse::cli
