// Calibration by the program: the one of `glimpse calibrate`, and the one before a method that needs a profile and has
// none. One thread.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string_view>

#include "glimpse/calibrate/budgets.h"
#include "glimpse/calibrate/calibrate.h"
#include "glimpse/cli/arm.h"
#include "glimpse/cli/profiles.h"
#include "glimpse/cli/terminal.h"

namespace glimpse::cli {

/// Throws UserError for a file that is there and no profile, and for a place that cannot be written to.
void require_profile_place(const std::filesystem::path& path);

/// Where a profile goes, and what ends its making. Borrows both.
struct CalibrationPlace {
  const std::filesystem::path& path;
  const InterruptGuard& interrupt;
  bool goes_on = false;  ///< what is measured is kept in PATH.part until there is a profile, and read from there
};

/// Removes PATH.part: what was measured is in the profile.
void remove_part(const std::filesystem::path& path);

/// Calibrates with a progress bar; none where Ctrl-C ended it, which is said. The profile has the model's fingerprint
/// and the machine's name.
std::optional<calibrate::Calibration> run_calibration(const Arguments& arguments, engine::Engine& engine,
                                                      calibrate::CalibrationOptions options,
                                                      const CalibrationPlace& place);

struct MethodsInProfile {
  const plan::Profile& profile;                      ///< what the methods are told; borrowed for the call
  std::span<const calibrate::WantedMethod> methods;  ///< so are these
};
/// What the methods keep with that profile, and their times: `kept` and `speed` alone (calibrate::measure_methods),
/// kept in PATH.part too. None where Ctrl-C ended it; nothing is said.
std::optional<plan::Profile> run_measurement(const Arguments& arguments, engine::Engine& engine,
                                             const MethodsInProfile& of, calibrate::CalibrationOptions options,
                                             const CalibrationPlace& place);

/// The same for budgets.
std::optional<calibrate::BudgetCalibration> run_calibration(const Arguments& arguments, engine::Engine& engine,
                                                            calibrate::BudgetOptions options,
                                                            const CalibrationPlace& place);

/// Makes the model's profile where the method of --attn, or one of the arms, would do without one what it does better
/// with it, and none is found: with --calibrate or at a terminal; says so in a line. The model is opened and closed
/// again before it returns. False: Ctrl-C ended it, and nothing was written. Throws UserError for a model that cannot
/// be calibrated where --calibrate was given; else that is a warning.
bool calibrate_first(const Arguments& arguments);
bool calibrate_first(const Arguments& arguments, std::span<const Arm> arms);

}  // namespace glimpse::cli
