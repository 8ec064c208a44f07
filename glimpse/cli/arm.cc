#include "glimpse/cli/arm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/cli/auto_method.h"
#include "glimpse/cli/setup.h"

namespace glimpse::cli {
namespace {

constexpr std::string_view kForm = "write NAME[:BUDGET][,KEY=VALUE...], as in tidal:512,reselect=13";

[[noreturn]] void refuse(std::string_view part, std::string_view why) {
  throw UserError(fmt::format("arm: '{}' {}; {}", excerpt(part), why, kForm));
}

/// KEY=VALUE rather than NAME or NAME:BUDGET.
bool is_option(std::string_view part) {
  const std::size_t equals = part.find('=');
  return equals != std::string_view::npos && equals < part.find(':');
}

bool is_budget(std::string_view part) {
  constexpr std::array<std::string_view, 3> kKinds{"p=", "coverage=", "tau="};
  return !is_option(part) ||
         std::any_of(kKinds.begin(), kKinds.end(), [&](auto kind) { return part.starts_with(kind); });
}

int whole_number(std::string_view part, std::string_view text, int low, int high) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    refuse(part, fmt::format("needs a whole number from {} to {}", low, high));
  }
  return value;
}

/// Parts between any of `separators`, without empty ones.
std::vector<std::string> parts_of(std::string_view text, std::string_view separators) {
  std::vector<std::string> parts;
  for (std::size_t begin = text.find_first_not_of(separators); begin != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(separators, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = text.find_first_not_of(separators, end);
  }
  return parts;
}

void add_option(policies::PolicyOptions& options, const std::string& part) {
  constexpr int kMostPosition = 1 << 30;
  const std::size_t equals = part.find('=');
  const std::string key = part.substr(0, equals), value = part.substr(equals + 1);
  if (key.empty()) refuse(part, "names no option");
  bool fresh = true;
  const auto number = [&](std::optional<int>& field, int low, int high) {
    fresh = !field;
    field = whole_number(part, value, low, high);
  };
  if (key == "block") {
    number(options.block, 1, 65536);
  } else if (key == "sink") {
    number(options.sink, 0, kMostPosition);
  } else if (key == "local") {
    number(options.local, 0, kMostPosition);
  } else if (key == "min-ctx") {
    fresh = options.min_context == 0;
    options.min_context = whole_number(part, value, 0, kMostPosition);
  } else {
    fresh = options.extra.emplace(key, value).second;
  }
  if (!fresh) refuse(part, "gives the option twice");
}

Arm arm_of(std::span<const std::string> parts) {
  if (parts.empty() || parts.front().empty()) throw UserError(fmt::format("an arm is empty: {}", kForm));
  const std::string& first = parts.front();
  if (is_option(first)) refuse(first, "stands before any method");
  const std::size_t colon = std::min(first.find(':'), first.size());
  Arm arm;
  arm.policy = first.substr(0, colon);
  if (arm.policy == kAuto) {
    if (colon < first.size() || parts.size() > 1) refuse(first, "chooses budget and options itself");
    arm.written = arm.policy;
    return arm;
  }
  policies::find_policy(arm.policy, kAuto);
  std::string budget = colon < first.size() ? first.substr(colon + 1) : "";
  bool has_budget = colon < first.size();
  std::string options;
  for (const std::string& part : parts.subspan(1)) {
    if (part.starts_with("min=") && has_budget) {
      budget.append(",").append(part);
    } else if (is_budget(part)) {
      if (has_budget) refuse(part, fmt::format("is a second budget beside '{}'", excerpt(budget)));
      budget = part;
      has_budget = true;
    } else {
      add_option(arm.options, part);
      options.append(",").append(part);
    }
  }
  if (has_budget) policies::set_budget(arm.options, budget);
  arm.written = arm.policy + (has_budget ? ":" + budget : "") + options;
  arm.budget = std::move(budget);
  arm.keys = options.empty() ? "" : options.substr(1);
  return arm;
}

}  // namespace

Arm parse_arm(std::string_view text) {
  const std::vector<std::string> parts = parts_of(text, " \t,");
  return arm_of(parts);
}

std::vector<Arm> parse_arms(std::string_view list) {
  const std::vector<std::string> parts = split_commas(list);
  std::vector<Arm> arms;
  for (std::size_t begin = 0; begin < parts.size();) {
    std::size_t end = begin + 1;
    while (end < parts.size() && is_option(parts[end])) ++end;
    arms.push_back(arm_of(std::span(parts).subspan(begin, end - begin)));
    begin = end;
  }
  return arms;
}

plan::Plan make_arm_plan(const Arguments& arguments, const Arm& arm, const PlanModel& model, std::int64_t tokens) {
  if (arm.policy == kAuto) return make_auto_plan(arguments, model, tokens);
  const policies::Policy& policy = policies::find_policy(arm.policy);
  policies::PolicyOptions options = arm.options;
  const bool budgets = options.profile_budget;
  const plan::Profile* profile = profile_for(arguments, policy, model, budgets);
  const bool uses = profile != nullptr && policies::uses_profile(policy, *profile, budgets);
  set_profile(options, uses ? profile : nullptr, model);
  return make_policy_plan(arguments, arm.policy, model.shape, std::move(options));
}

std::vector<plan::Plan> make_arm_plans(const Arguments& arguments, std::span<const Arm> arms, const PlanModel& model,
                                       std::int64_t tokens) {
  std::vector<std::string_view> names;
  for (const Arm& arm : arms) names.emplace_back(arm.policy);
  const auto takes_budgets = [](const Arm& arm) { return arm.options.profile_budget; };
  if (std::none_of(arms.begin(), arms.end(), takes_budgets)) refuse_idle_profile(arguments, names);
  bool used = !arguments.typed.contains("--attn-profile");
  std::vector<plan::Plan> plans;
  for (const Arm& arm : arms) {
    plans.push_back(make_arm_plan(arguments, arm, model, tokens));
    if (arm.policy == kAuto) {
      used = true;
      continue;
    }
    const policies::Policy& policy = policies::find_policy(arm.policy);
    const bool budgets = arm.options.profile_budget;
    const plan::Profile* profile = profile_for(arguments, policy, model, budgets);
    used = used || profile == nullptr || policies::uses_profile(policy, *profile, budgets);  // null: "none" was typed
  }
  if (!used) {
    throw UserError(
        fmt::format("--attn-profile '{}': no arm has a use for what it holds; leave the flag out", *arguments.profile));
  }
  return plans;
}

}  // namespace glimpse::cli
