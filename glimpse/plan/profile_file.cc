#include "glimpse/plan/profile_file.h"

#include <fmt/format.h>

#include "glimpse/base/error.h"
#include "glimpse/base/whole_file.h"

namespace glimpse::plan {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;

}  // namespace

std::filesystem::path profile_path(const std::filesystem::path& folder, std::uint64_t fingerprint) {
  return folder / (fingerprint_text(fingerprint) + ".json");
}

std::optional<Profile> load_profile(const std::filesystem::path& file) {
  const std::optional<std::string> text = read_whole_file(file, kMostBytes);
  if (!text) return std::nullopt;
  try {
    return parse_profile(*text);
  } catch (const UserError& error) {
    throw UserError(fmt::format("'{}': {}", file.string(), error.what()));
  }
}

void save_profile(const std::filesystem::path& file, const Profile& profile) {
  replace_file(file, to_json(profile));
}

}  // namespace glimpse::plan
