// Where a calibration's profile goes, and what is kept of the one that is there. One thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "glimpse/cli/arguments.h"
#include "glimpse/cli/profiles.h"
#include "glimpse/plan/profile.h"

namespace glimpse::cli {

/// The file of -o, or the model's own in the folder of profiles. Throws UserError where there is neither.
std::filesystem::path profile_output(const Arguments& arguments, const PlanModel& model);

/// What a command that made it says in the end: where it is, and who finds it.
std::string profile_line(const Arguments& arguments, const std::filesystem::path& path);

/// The profile that is there; none where there is none, and of a file that is empty or broken.
std::optional<plan::Profile> profile_at(const std::filesystem::path& path);

/// Throws UserError where the profile at `path` is another model's and -o names it, and where a part alone is made and
/// the profile that the other parts would stay in is another model's or broken.
void require_own_profile(const Arguments& arguments, const std::filesystem::path& path, const PlanModel& model);

/// `found` with the other parts of the profile at `path`, where that is the same model's.
plan::Profile with_other_parts(const std::filesystem::path& path, plan::Profile found);

/// What the profile at `path`, where that is the same model's, knows of times on other machines goes on in `found`.
void keep_times(const std::filesystem::path& path, plan::Profile& found);

}  // namespace glimpse::cli
