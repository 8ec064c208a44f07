#include "glimpse/cli/method_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/cli/auto_method.h"
#include "glimpse/cli/calibration_report.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/profile_output.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/plan/profile_file.h"

namespace glimpse::cli {
namespace {

constexpr std::string_view kRolesMethod = "lychee-decode";

void warn(const Arguments& arguments, const std::string& text) {
  if (!arguments.quiet) print_note(printable("warning: " + text));
}

/// Where times of other methods cannot be compared with those that were measured now.
std::string not_alike(const plan::SpeedProfile& there, const plan::SpeedProfile& now, std::string_view again) {
  const auto words = [](const plan::SpeedProfile& speed) {
    return fmt::format("'{}' with -t {}, a cache of {} and {} tokens", speed.processor, speed.threads, speed.kv_type,
                       speed.tokens);
  };
  std::set<std::string> methods;
  for (const plan::MethodTime& row : now.methods) methods.insert(row.method);
  return fmt::format(
      "the profile's times were measured on {}, and those of {} on {}; --attn auto leaves {} out until '{}' measures "
      "as the others were",
      words(there), fmt::join(methods, ", "), words(now), methods.size() == 1 ? "it" : "them", again);
}

/// The arms of the command line; each is a row of the table, or three where it names no budget.
std::vector<calibrate::WantedMethod> wanted_methods(const Arguments& arguments) {
  if (!arguments.given.contains("--arms")) {
    throw UserError("no method: give --arms NAME[:BUDGET][,KEY=VALUE...], with commas between several");
  }
  std::vector<calibrate::WantedMethod> wanted;
  std::set<std::string> written;
  for (Arm& arm : parse_arms(arguments.arms)) {
    if (arm.policy == kAuto || arm.policy == "full") {
      throw UserError(fmt::format("--arms: '{}' is {}; name methods that are to be measured", arm.policy,
                                  arm.policy == kAuto ? "a choice among those that were measured"
                                                      : "dense attention, which every profile is measured beside"));
    }
    const std::optional<plan::Budget>& budget = arm.options.budget;
    const bool fits = !budget || budget->rule == plan::BudgetRule::tokens || budget->rule == plan::BudgetRule::ratio;
    if (arm.options.profile_budget || !fits || arm.options.min_context > 0) {
      throw UserError(fmt::format(
          "--arms: '{}': a row of a profile has a number of tokens or a share as its budget, and no min-ctx",
          printable(arm.written)));
    }
    if (!written.insert(arm.written).second) {
      throw UserError(fmt::format("--arms: '{}' is given twice", printable(arm.written)));
    }
    wanted.push_back({arm.policy, arm.keys, std::move(arm.options), std::nullopt});
    if (!arm.budget.empty()) wanted.back().budget = arm.budget;
  }
  return wanted;
}

}  // namespace

plan::Profile with_roles(const std::filesystem::path& path, plan::Profile found) {
  plan::Profile profile = with_other_parts(path, std::move(found));
  const auto stale = [](const auto& row) { return row.method == kRolesMethod; };
  std::erase_if(profile.kept, stale);
  if (profile.speed) std::erase_if(profile.speed->methods, stale);
  for (plan::SpeedProfile& speed : profile.elsewhere) std::erase_if(speed.methods, stale);
  return profile;
}

std::int64_t measured_context(const plan::Profile& profile) {
  return profile.speed ? profile.speed->tokens : 0;
}

std::optional<plan::Profile> measure_rows(const Arguments& arguments, engine::Engine& engine,
                                          const MethodsInProfile& of, RowPrompts prompts,
                                          const CalibrationPlace& place) {
  const std::int64_t like = measured_context(of.profile);
  calibrate::CalibrationOptions options;
  options.study.length =
      like > calibrate::kAnswerRoom && like <= engine.context() ? like - calibrate::kAnswerRoom : prompts.length;
  options.study.seed = prompts.seed;
  options.study.text = std::move(prompts.prose);
  return run_measurement(arguments, engine, of, std::move(options), place);
}

std::string add_rows(const Arguments& arguments, const std::filesystem::path& path, plan::Profile rows,
                     std::string_view again) {
  std::string text = table_text(rows);
  std::optional<plan::Profile> profile = plan::load_profile(path);
  if (!profile) {
    plan::save_profile(path, rows);
    return text;
  }
  const plan::SpeedProfile* const there = plan::speed_on(*profile, rows.speed->machine());
  if (profile->speed && (there == nullptr || !there->measured_like(*rows.speed))) {
    warn(arguments, not_alike(*profile->speed, *rows.speed, again));
    rows.speed.reset();
  }
  plan::merge(*profile, rows);
  plan::save_profile(path, *profile);
  return text;
}

std::optional<std::string> add_role_rows(const Arguments& arguments, engine::Engine& engine, RowPrompts prompts,
                                         const CalibrationPlace& place) {
  const std::optional<plan::Profile> profile = plan::load_profile(place.path);
  check(profile.has_value(), "the roles are written before they are measured");
  const calibrate::WantedMethod method{std::string(kRolesMethod), {}, {}, std::nullopt};
  std::optional<plan::Profile> rows;
  try {
    rows = measure_rows(arguments, engine, {*profile, {&method, 1}}, std::move(prompts), place);
  } catch (const UserError& error) {
    warn(arguments, fmt::format("what {} keeps was not measured, and --attn auto leaves it out: {}; give a larger -c",
                                kRolesMethod, error.what()));
    return "";
  }
  if (!rows) return std::nullopt;
  std::string text = "\n" + add_rows(arguments, place.path, *std::move(rows), "glimpse calibrate roles");
  remove_part(place.path);
  return text;
}

int calibrate_methods(const Arguments& arguments, engine::EngineOptions how) {
  const std::vector<calibrate::WantedMethod> wanted = wanted_methods(arguments);
  const auto prose_file = text_file(arguments);
  RowPrompts prompts{0, prose_file ? read_text(*prose_file) : "", static_cast<std::uint64_t>(arguments.seed)};
  const InterruptGuard interrupt;
  plan::Profile profile;
  std::filesystem::path path;
  {
    const model::Model file{std::filesystem::path(arguments.model)};
    const PlanModel model = plan_model(file, arguments);
    path = profile_output(arguments, model);
    require_profile_place(path);
    require_own_profile(arguments, path, model);
    profile = profile_at(path).value_or(plan::empty_profile(model.shape));
    if (const std::int64_t like = measured_context(profile); like > 0) {
      if (arguments.typed.contains("--ctx-size") && how.context != like) {
        throw UserError(fmt::format(
            "-c {}: the profile's other methods were measured at -c {}, and rows of one profile are measured alike; "
            "leave the flag out",
            how.context, like));
      }
      how.context = std::min<std::int64_t>(like, model.shape.context);
    }
  }
  how.sequences = calibrate::study_sequences(how.context);
  engine::Engine engine(how);
  prompts.length = std::min<std::int64_t>(engine.context(), engine.shape().context) - calibrate::kAnswerRoom;
  std::optional<plan::Profile> rows =
      measure_rows(arguments, engine, {profile, wanted}, std::move(prompts), {path, interrupt, true});
  if (!rows) {
    print_note(printable(fmt::format("interrupted; '{}' stays as it is", path.string())));
    return kExitInterrupted;
  }
  std::string text = add_rows(arguments, path, *std::move(rows), "glimpse calibrate methods");
  remove_part(path);
  print(text + profile_line(arguments, path));
  return kExitOk;
}

}  // namespace glimpse::cli
