// What methods keep of dense attention, measured on their own and added to a profile that is there: of lychee-decode
// behind the training of its roles, of any method by `calibrate methods`. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "glimpse/cli/calibration.h"
#include "glimpse/plan/profile.h"

namespace glimpse::cli {

inline constexpr std::string_view kMethodsPart = "methods";

/// The profile at `path` with these roles, without what was measured of lychee-decode with others.
plan::Profile with_roles(const std::filesystem::path& path, plan::Profile found);

/// Tokens that the engine needs for the prompts that the profile's methods were measured in; 0: has no times.
std::int64_t measured_context(const plan::Profile& profile);

struct RowPrompts {
  std::int64_t length = 0;  ///< tokens, where the profile has no times of its own
  std::string prose;        ///< the user's own
  std::uint64_t seed = 1;
};
/// Measures the methods as calibration does, with what the profile says and in prompts as long as those of its other
/// methods: `kept` and `speed`. None where Ctrl-C ended it; nothing is said. Throws UserError for what cannot be
/// measured. The engine has room for calibrate::study_sequences().
std::optional<plan::Profile> measure_rows(const Arguments& arguments, engine::Engine& engine,
                                          const MethodsInProfile& of, RowPrompts prompts,
                                          const CalibrationPlace& place);
/// Writes them into the profile at `path`; gives the table to print. Where the times of its other methods are another
/// machine's, a warning says what --attn auto leaves out until `again` measures it.
std::string add_rows(const Arguments& arguments, const std::filesystem::path& path, plan::Profile rows,
                     std::string_view again);

/// Both for lychee-decode, whose roles are in the profile at `place`. None where Ctrl-C ended it. What cannot be
/// measured is a warning.
std::optional<std::string> add_role_rows(const Arguments& arguments, engine::Engine& engine, RowPrompts prompts,
                                         const CalibrationPlace& place);

/// `glimpse calibrate methods`.
int calibrate_methods(const Arguments& arguments, engine::EngineOptions how);

}  // namespace glimpse::cli
