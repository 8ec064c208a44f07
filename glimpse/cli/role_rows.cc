#include "glimpse/cli/role_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/cli/calibration_report.h"
#include "glimpse/cli/profile_output.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/plan/profile_file.h"

namespace glimpse::cli {
namespace {

constexpr std::string_view kMethod = "lychee-decode";

void warn(const Arguments& arguments, const std::string& text) {
  if (!arguments.quiet) print_note(printable("warning: " + text));
}

/// Where times of other methods cannot be compared with those that were measured now.
std::string not_alike(const plan::SpeedProfile& there, const plan::SpeedProfile& now) {
  const auto words = [](const plan::SpeedProfile& speed) {
    return fmt::format("'{}' with -t {}, a cache of {} and {} tokens", speed.processor, speed.threads, speed.kv_type,
                       speed.tokens);
  };
  return fmt::format(
      "the profile's times were measured on {}, and those of {} on {}; --attn auto leaves {} out until 'glimpse "
      "calibrate roles' measures it as the others were",
      words(there), kMethod, words(now), kMethod);
}

}  // namespace

plan::Profile with_roles(const std::filesystem::path& path, plan::Profile found) {
  plan::Profile profile = with_other_parts(path, std::move(found));
  const auto stale = [](const auto& row) { return row.method == kMethod; };
  std::erase_if(profile.kept, stale);
  if (profile.speed) std::erase_if(profile.speed->methods, stale);
  for (plan::SpeedProfile& speed : profile.elsewhere) std::erase_if(speed.methods, stale);
  return profile;
}

std::int64_t measured_context(const plan::Profile& profile) {
  return profile.speed ? profile.speed->tokens : 0;
}

std::optional<std::string> add_role_rows(const Arguments& arguments, engine::Engine& engine, const RoleRows& of,
                                         const CalibrationPlace& place) {
  std::optional<plan::Profile> profile = plan::load_profile(place.path);
  check(profile.has_value(), "the roles are written before they are measured");
  const std::int64_t like = measured_context(*profile);
  calibrate::CalibrationOptions options;
  options.study.length =
      like > calibrate::kAnswerRoom && like <= engine.context() ? like - calibrate::kAnswerRoom : of.length;
  options.study.seed = of.seed;
  options.study.text = of.prose;
  std::optional<plan::Profile> rows;
  try {
    rows = run_measurement(arguments, engine, {*profile, kMethod}, std::move(options), place);
  } catch (const UserError& error) {
    warn(arguments, fmt::format("what {} keeps was not measured, and --attn auto leaves it out: {}; give a larger -c",
                                kMethod, error.what()));
    return "";
  }
  if (!rows) return std::nullopt;
  std::string text = "\n" + table_text(*rows);
  const plan::SpeedProfile* const there = plan::speed_on(*profile, rows->speed->machine());
  if (profile->speed && (there == nullptr || !there->measured_like(*rows->speed))) {
    warn(arguments, not_alike(*profile->speed, *rows->speed));
    rows->speed.reset();
  }
  plan::merge(*profile, *rows);
  plan::save_profile(place.path, *profile);
  remove_part(place.path);
  return text;
}

}  // namespace glimpse::cli
