// What lychee-decode keeps with roles that were trained, measured behind the training. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "glimpse/cli/calibration.h"
#include "glimpse/plan/profile.h"

namespace glimpse::cli {

/// The profile at `path` with these roles, without what was measured of lychee-decode with others.
plan::Profile with_roles(const std::filesystem::path& path, plan::Profile found);

struct RoleRows {
  std::int64_t length = 0;  ///< tokens of the prompts, where the profile has no times of its own
  std::string prose;        ///< the user's own
  std::uint64_t seed = 1;
};
/// Tokens that the engine needs for the prompts that the profile's other methods were measured in; 0: has no times.
std::int64_t measured_context(const plan::Profile& profile);

/// Measures lychee-decode as calibration does, with the roles and at the length of the profile at `place`, and writes
/// its rows and times there. Gives the table to print; none where Ctrl-C ended it. Where it cannot be measured, or the
/// profile's times are another machine's, that is a warning that says what --attn auto leaves out. The engine has room
/// for calibrate::study_sequences().
std::optional<std::string> add_role_rows(const Arguments& arguments, engine::Engine& engine, const RoleRows& of,
                                         const CalibrationPlace& place);

}  // namespace glimpse::cli
