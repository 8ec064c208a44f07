// A method with its options in one word: NAME[:BUDGET][,KEY=VALUE...], as in tidal:512,reselect=13; or "auto". `bench
// decode
// --arms` takes a list of them, /attn of `run -i` one, where blanks may stand for the colon and the commas. Values; any
// thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/cli/arguments.h"
#include "glimpse/cli/profiles.h"
#include "glimpse/policies/policy.h"

namespace glimpse::cli {

struct Arm {
  std::string written;  ///< in the form above
  std::string policy;
  std::string budget, keys;         ///< the parts of `written` behind the name, such as "512" and "reselect=13"
  policies::PolicyOptions options;  ///< block, sink, local and min-ctx are the --attn-* flags, the rest --attn-opt
};

/// Throws UserError for an unknown method, a budget that is none, an option without "=" or given twice.
Arm parse_arm(std::string_view text);
/// Arms with commas between. A part KEY=VALUE belongs to the arm before it.
std::vector<Arm> parse_arms(std::string_view list);

/// A plan for each arm; `tokens` of context are what the arm "auto" chooses for. A profile goes to the policies that
/// use it, of which there must be one where it was typed.
std::vector<plan::Plan> make_arm_plans(const Arguments& arguments, std::span<const Arm> arms, const PlanModel& model,
                                       std::int64_t tokens);
/// The plan of one that came in a dialogue: without a use for a profile it leaves a typed one.
plan::Plan make_arm_plan(const Arguments& arguments, const Arm& arm, const PlanModel& model, std::int64_t tokens);

}  // namespace glimpse::cli
