#include "glimpse/cli/profile_output.h"

#include <fmt/format.h>

#include <optional>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/plan/profile_file.h"

namespace glimpse::cli {
namespace {

/// What is wrong with a profile that is there.
struct Fault {
  bool foreign = false;  ///< it is another model's; else it is none that can be read
  std::string text;
};

std::optional<Fault> fault_of(const std::filesystem::path& path, const PlanModel& model) {
  std::error_code failed;
  if (!std::filesystem::exists(path, failed) || std::filesystem::file_size(path, failed) == 0) return std::nullopt;
  std::optional<plan::Profile> there;
  try {
    there = plan::load_profile(path);
  } catch (const UserError& error) {
    return Fault{false, error.what()};
  }
  if (!there) return std::nullopt;
  try {
    validate_for(*there, model.shape, there->fingerprint ? std::optional(model.fingerprint()) : std::nullopt);
  } catch (const UserError&) {
    return Fault{true, fmt::format("'{}' is the profile of another model", path.string())};
  }
  return std::nullopt;
}

}  // namespace

std::filesystem::path profile_output(const Arguments& arguments, const PlanModel& model) {
  if (!arguments.output.empty()) {
    const std::filesystem::path named(arguments.output);
    if (named.has_parent_path() && !std::filesystem::is_directory(named.parent_path())) {
      throw UserError(fmt::format("cannot write '{}': there is no such folder", printable(arguments.output)));
    }
    return named;
  }
  const std::filesystem::path folder = profile_folder(arguments);
  if (folder.empty()) {
    throw UserError("there is no folder for profiles: HOME and XDG_DATA_HOME are not set; name a file with -o");
  }
  return plan::profile_path(folder, model.fingerprint());
}

std::string profile_line(const Arguments& arguments, const std::filesystem::path& path) {
  return fmt::format("\nprofile in '{}'{}\n", printable(path.string()),
                     arguments.output.empty() ? ", where commands find it" : ", for --attn-profile");
}

std::optional<plan::Profile> profile_at(const std::filesystem::path& path) {
  try {
    return plan::load_profile(path);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

void require_own_profile(const Arguments& arguments, const std::filesystem::path& path, const PlanModel& model) {
  const std::optional<Fault> fault = fault_of(path, model);
  const bool whole = arguments.part == "all", named = !arguments.output.empty();
  if (!fault || (whole && !(fault->foreign && named))) return;
  throw UserError(printable(fmt::format(
      "{}; {}", fault->text,
      named ? "give another name with -o" : "'glimpse calibrate -m MODEL' makes a whole one in its place")));
}

namespace {

/// The one that is there, of the same model as `found`.
std::optional<plan::Profile> same_model_at(const std::filesystem::path& path, const plan::Profile& found) {
  std::optional<plan::Profile> there = profile_at(path);
  const bool same =
      there && there->model == found.model && !(there->fingerprint && there->fingerprint != found.fingerprint);
  return same ? there : std::nullopt;
}

}  // namespace

plan::Profile with_other_parts(const std::filesystem::path& path, plan::Profile found) {
  std::optional<plan::Profile> there = same_model_at(path, found);
  if (!there) return found;
  plan::merge(*there, found);
  there->fingerprint = found.fingerprint;
  return *std::move(there);
}

void keep_times(const std::filesystem::path& path, plan::Profile& found) {
  if (const std::optional<plan::Profile> there = same_model_at(path, found)) plan::keep_elsewhere(found, *there);
}

}  // namespace glimpse::cli
