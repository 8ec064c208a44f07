// Calibration: what methods must know of one model, found out from generated prompts (docs/calibration.md). The engine
// outlives the call and has room for study_sequences(); one thread, and the callback runs on it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/calibrate/choose.h"
#include "glimpse/plan/profile.h"
#include "glimpse/policies/policy.h"

namespace glimpse::calibrate {

/// The parts that may be asked for alone; `roles` by training is that of glimpse/train, `budget` that of budgets.h,
/// `methods` are rows of measure_methods.
enum class Part : std::uint8_t { all, kascade, tidal, retrieval, roles, budget, methods };
/// Throws UserError with the nearest name.
Part parse_part(std::string_view text);

struct CalibrationOptions {
  Part part = Part::all;
  StudyOptions study;
  std::string processor = "unknown";  ///< its name, for the measured times
  /// Where what is measured is looked up and kept: of the same model and options, or empty. Borrowed; to be given.
  Measured* measured = nullptr;
  /// Work done and to do, in prompt tokens; false ends the calibration.
  Progress::Callback on_progress;
};

/// A method that the device does not run, with the reason and the cure.
struct LeftOut {
  std::string method, why;
};

struct Calibration {
  plan::Profile profile;                            ///< without the fingerprint of the model's file
  std::optional<Choice> tidal, lessismore, omnikv;  ///< `layers` are the layer that selects again, and the filters
  std::optional<AnchorChoice> kascade;
  std::optional<HeadChoice> heads;
  std::vector<LeftOut> left_out;
  std::int64_t length = 0;  ///< tokens of the longest prompts
  int budget = 0;           ///< at which layers were decided
};

/// Empty where the callback ended it. Throws UserError for a model or a context that cannot be calibrated.
std::optional<Calibration> calibrate(engine::Engine& engine, const CalibrationOptions& options);

/// A method whose rows are measured.
struct WantedMethod {
  std::string method;
  std::string options;                ///< as --attn-opt has them, and as the rows say them; may be empty
  policies::PolicyOptions how;        ///< the same; its budget and profile have no meaning
  std::optional<std::string> budget;  ///< tokens or a share, as --attn-budget has it; none: those of kTableBudgets
};
/// What methods keep with what `profile` says, and their times beside dense attention's, measured as calibrate() does:
/// a profile of `kept` and `speed` alone. Empty and throws as calibrate(); for a method that the device does not run,
/// and a budget over half of the prompts, too. `options.part` has no meaning.
std::optional<plan::Profile> measure_methods(engine::Engine& engine, const plan::Profile& profile,
                                             std::span<const WantedMethod> methods, const CalibrationOptions& options);

}  // namespace glimpse::calibrate
