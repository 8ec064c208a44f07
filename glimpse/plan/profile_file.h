// Profiles as files: one for each model in a folder of profiles, found by the fingerprint of the model's file
// (model::fingerprint). Which folder that is, the caller says. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "glimpse/plan/profile.h"

namespace glimpse::plan {

/// FOLDER/FINGERPRINT.json, as in "0123456789abcdef.json".
std::filesystem::path profile_path(const std::filesystem::path& folder, std::uint64_t fingerprint);

/// The profile in the file; nothing where there is no file. Throws UserError naming the file where it cannot be read or
/// holds no profile.
std::optional<Profile> load_profile(const std::filesystem::path& file);

/// Writes the profile, and the folders that are not there. Throws UserError, and the old file is as it was then
/// (replace_file).
void save_profile(const std::filesystem::path& file, const Profile& profile);

}  // namespace glimpse::plan
