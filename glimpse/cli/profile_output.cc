#include "glimpse/cli/profile_output.h"

#include <fmt/format.h>

#include <optional>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/plan/profile_file.h"

namespace glimpse::cli {

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

plan::Profile with_other_parts(const std::filesystem::path& path, plan::Profile found) {
  std::optional<plan::Profile> there;
  try {
    there = plan::load_profile(path);
  } catch (const UserError&) {  // broken: it is replaced
  }
  if (!there || !(there->model == found.model) || there->fingerprint != found.fingerprint) return found;
  plan::merge(*there, found);
  return *std::move(there);
}

}  // namespace glimpse::cli
