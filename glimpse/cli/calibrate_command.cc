// glimpse calibrate: what methods must know of a model, as a profile and a table.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/base/whole_file.h"
#include "glimpse/cli/calibration.h"
#include "glimpse/cli/calibration_report.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/heat_map.h"
#include "glimpse/cli/method_rows.h"
#include "glimpse/cli/profile_output.h"
#include "glimpse/cli/profiles.h"
#include "glimpse/cli/roles.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/plan/profile_file.h"

namespace glimpse::cli {
namespace {

calibrate::CalibrationOptions calibration_options(const Arguments& arguments) {
  calibrate::CalibrationOptions options;
  options.part = calibrate::parse_part(arguments.part);
  options.study.seed = static_cast<std::uint64_t>(arguments.seed);
  if (const auto file = text_file(arguments)) options.study.text = read_text(*file);
  return options;
}

/// The part `budget`.
int calibrate_budgets(const Arguments& arguments, engine::Engine& engine, calibrate::StudyOptions study,
                      const CalibrationPlace& place) {
  calibrate::BudgetOptions options;
  options.study = std::move(study);
  options.coverage = arguments.coverage;
  if (arguments.given.contains("--of-steps")) options.steps = arguments.of_steps;
  options.together = arguments.together;
  if (arguments.given.contains("--kl")) options.divergence = arguments.kl;
  const std::optional<calibrate::BudgetCalibration> found =
      run_calibration(arguments, engine, std::move(options), place);
  if (!found) return kExitInterrupted;
  plan::save_profile(place.path, with_other_parts(place.path, found->profile));
  remove_part(place.path);
  print(budgets_text(*found) + profile_line(arguments, place.path));
  return kExitOk;
}

void write_heat_map(const std::string& file, const calibrate::Calibration& found) {
  if (!found.kascade) throw UserError("--heat-map: kascade was left out, so there is none; leave the flag out");
  const plan::ModelShape& shape = found.profile.model;
  const plan::KascadeProfile& part = found.kascade->profile;
  replace_file(file, heat_map({shape.model_name, shape.layers, part.similarity, part.anchors}));
}

}  // namespace

int calibrate_command(const Arguments& arguments) {
  set_log(arguments);
  engine::EngineOptions engine_how = engine_options(arguments);
  if (arguments.part == kRolesPart) return train_roles(arguments, engine_how);
  if (arguments.part == kMethodsPart) return calibrate_methods(arguments, engine_how);
  engine_how.sequences = calibrate::study_sequences(engine_how.context);
  calibrate::CalibrationOptions options = calibration_options(arguments);
  const InterruptGuard interrupt;
  engine::Engine engine(engine_how);
  const PlanModel model = plan_model(engine);
  const std::filesystem::path path = profile_output(arguments, model);
  require_profile_place(path);
  require_own_profile(arguments, path, model);
  if (!arguments.heat_map.empty()) require_replaceable(arguments.heat_map);
  const std::int64_t made_for = engine.shape().context;
  if (made_for < engine.context() && arguments.typed.contains("--ctx-size")) {
    throw UserError(
        fmt::format("-c {}: the model was made for {} tokens; give at most that", engine.context(), made_for));
  }
  options.study.length = std::min(engine.context(), made_for) - calibrate::kAnswerRoom;

  const CalibrationPlace place{path, interrupt, true};
  if (options.part == calibrate::Part::budget) {
    return calibrate_budgets(arguments, engine, std::move(options.study), place);
  }
  const bool all = options.part == calibrate::Part::all;
  std::optional<calibrate::Calibration> found = run_calibration(arguments, engine, std::move(options), place);
  if (!found) return kExitInterrupted;
  if (all) keep_times(path, found->profile);
  plan::save_profile(path, all ? found->profile : with_other_parts(path, found->profile));
  remove_part(path);
  if (!arguments.heat_map.empty()) write_heat_map(arguments.heat_map, *found);
  print(choices_text(*found) + "\n" + table_text(found->profile) + (all ? "" : candidates_text(*found)) +
        profile_line(arguments, path));
  return kExitOk;
}

}  // namespace glimpse::cli
