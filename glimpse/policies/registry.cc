#include <fmt/format.h>

#include <array>

#include "glimpse/base/error.h"
#include "glimpse/base/suggest.h"
#include "glimpse/policies/policy.h"

namespace glimpse::policies {

std::span<const Policy> registry() {
  static const std::array policies{full_policy(), streaming_policy(), tidal_policy()};
  return policies;
}

const Policy& find_policy(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Policy& policy : registry()) {
    if (policy.name == name) return policy;
    names.push_back(policy.name);
  }
  throw UserError(unknown_name("attention policy", name.substr(0, 64), names));
}

plan::Plan make_plan(std::string_view name, const plan::ModelShape& shape, const PolicyOptions& options) {
  const Policy& policy = find_policy(name);
  plan::Plan plan = policy.make(shape, options);
  plan.policy = std::string(policy.name);
  if (options.min_context < 0) {
    throw UserError(fmt::format("--attn-min-ctx {} is negative; give 0 or more tokens", options.min_context));
  }
  plan.min_context = options.min_context;
  validate(plan);
  return plan;
}

}  // namespace glimpse::policies
