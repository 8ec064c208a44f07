// glimpse calibrate: what methods must know of a model, as a profile and a table.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/calibrate/calibrate.h"
#include "glimpse/cli/calibration_report.h"
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
  const InterruptGuard interrupt;  // before there is a file to leave behind
  WholeFile file(path);
  engine::Engine engine(engine_how);
  const std::int64_t made_for = engine.shape().context;
  if (made_for < engine.context() && arguments.typed.contains("--ctx-size")) {
    throw UserError(
        fmt::format("-c {}: the model was made for {} tokens; give at most that", engine.context(), made_for));
  }
  options.study.length = std::min(engine.context(), made_for) - calibrate::kAnswerRoom;

  ProgressBar progress("calibrate", "tokens", !arguments.quiet);
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
  print(choices_text(*found) + "\n" + table_text(found->kept) +
        (options.part == calibrate::Part::all ? "" : candidates_text(*found)) +
        fmt::format("\nprofile in '{}', for --attn-profile\n", printable(path)));
  return kExitOk;
}

}  // namespace glimpse::cli
