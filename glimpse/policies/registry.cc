#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/base/suggest.h"
#include "glimpse/policies/policy.h"
#include "glimpse/policies/profile_budgets.h"

namespace glimpse::policies {

std::vector<Policy> methods();  // made by CMake of its list

std::span<const Policy> registry() {
  static const std::vector<Policy> policies = methods();
  return policies;
}

const Policy& find_policy(std::string_view name, std::string_view also) {
  std::vector<std::string_view> names;
  for (const Policy& policy : registry()) {
    if (policy.name == name) return policy;
    names.push_back(policy.name);
  }
  if (!also.empty()) names.push_back(also);
  throw UserError(unknown_name("attention policy", name, names));
}

void set_budget(PolicyOptions& options, std::string_view text) {
  options.profile_budget = text == "profile";
  options.budget = options.profile_budget ? std::nullopt : std::optional(plan::parse_budget(text));
}

bool uses_profile(const Policy& policy, const plan::Profile& profile, bool profile_budget) {
  if (profile_budget && profile.budget) return true;
  return std::any_of(policy.profile_parts.begin(), policy.profile_parts.end(),
                     [&](std::string_view part) { return profile.has(part); });
}

plan::Plan make_plan(std::string_view name, const plan::ModelShape& shape, const PolicyOptions& options) {
  const Policy& policy = find_policy(name);
  if (options.profile_budget && (options.profile == nullptr || !options.profile->budget)) {
    throw UserError(
        "--attn-budget profile: there is no profile with budgets; 'glimpse calibrate budget -m MODEL' makes one");
  }
  if (options.profile != nullptr) {
    if (policy.profile_parts.empty() && !options.profile_budget) {
      throw UserError(fmt::format("policy '{}' has no use for --attn-profile; leave the flag out", policy.name));
    }
    if (!uses_profile(policy, *options.profile, options.profile_budget)) {
      throw UserError(fmt::format("the profile has no part that policy '{}' uses; it needs {}", policy.name,
                                  fmt::join(policy.profile_parts, " or ")));
    }
    validate_for(*options.profile, shape, options.fingerprint);
  }
  if (options.min_context < 0) {
    throw UserError(fmt::format("--attn-min-ctx {} is negative; give 0 or more tokens", options.min_context));
  }
  try {
    plan::Plan plan = options.profile_budget ? plan_with_budgets(policy, shape, options) : policy.make(shape, options);
    plan.policy = std::string(policy.name);
    plan.min_context = options.min_context;
    validate(plan);
    return plan;
  } catch (const UserError& error) {
    if (!std::string_view(error.what()).starts_with("plan: ")) throw;
    throw UserError(fmt::format("policy '{}': {}", policy.name, error.what()));  // a check knows no policy
  }
}

bool guesses(std::string_view name, const plan::ModelShape& shape, PolicyOptions options) {
  bool guessed = false;
  options.guessed = &guessed;
  options.warnings = nullptr;
  try {
    make_plan(name, shape, options);
  } catch (const UserError&) {
    return false;  // whoever makes the plan is told
  }
  return guessed;
}

}  // namespace glimpse::policies
