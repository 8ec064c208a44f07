// A policy: a pure function (model shape, options, profile) -> Plan. It touches no tensor and no device. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/plan/plan.h"
#include "glimpse/plan/profile.h"

namespace glimpse::policies {

/// What the command line's --attn-* flags say, before a policy has read it. Unset: the policy's default.
struct PolicyOptions {
  std::optional<plan::Budget> budget;        ///< --attn-budget
  bool profile_budget = false;               ///< --attn-budget profile: the profile's budgets instead of `budget`
  std::optional<int> block;                  ///< --attn-block
  std::optional<int> sink;                   ///< --attn-sink
  std::optional<int> local;                  ///< --attn-local
  int min_context = 0;                       ///< --attn-min-ctx
  std::map<std::string, std::string> extra;  ///< --attn-opt key=value
  const plan::Profile* profile = nullptr;    ///< --attn-profile; borrowed for the call
  /// Of the model's file (Engine::fingerprint); a profile of another file is refused. None: the shape alone says.
  std::optional<std::uint64_t> fingerprint;
  /// Set where the options leave the profile nothing to say. Borrowed; none: that is a warning.
  bool* profile_unused = nullptr;
  /// Set where layers or heads are a guess, for want of a profile and of an option that names them. Borrowed; none:
  /// nobody asks.
  bool* guessed = nullptr;
  /// Those of "--attn-budget", "--attn-block", "--attn-sink" and "--attn-local" that a policy without a use for them
  /// leaves unread instead of refusing them.
  std::set<std::string, std::less<>> if_of_use;
  /// Where a policy says what the user should know and no error is ("no profile: ..."), a line each. Borrowed; none:
  /// nobody listens.
  std::vector<std::string>* warnings = nullptr;
};

/// One row of a policy's option table: what `--attn-opt` takes and `glimpse plan --list` prints.
struct OptionHelp {
  std::string_view key;
  std::string_view values;
  std::string_view default_value;
  std::string_view help;
  bool selector = false;  ///< the value names a selector, whose own options are taken as KEY.OPTION
  bool needed = false;    ///< without it the policy is refused
};

struct Policy {
  std::string_view name;
  std::string_view help;   ///< one line
  std::string_view paper;  ///< citation, empty for `full`
  std::vector<OptionHelp> options;
  /// Throws UserError for an unknown key, a value out of range, an option that this policy has no use for.
  std::function<plan::Plan(const plan::ModelShape&, const PolicyOptions&)> make;
  /// The parts of a profile that it can use, the better first; it needs one of them when a profile is given.
  std::vector<std::string_view> profile_parts = {};
};

/// Every policy, in the order of the list in glimpse/policies/CMakeLists.txt: adding a method is one file, in which
/// `Policy NAME_policy()` is defined, and one line there.
std::span<const Policy> registry();

/// Throws UserError with the nearest name. `also`: a word that is taken there beside the names of policies, if any.
const Policy& find_policy(std::string_view name, std::string_view also = {});

/// --attn-budget as it is typed: "profile", or what plan::parse_budget reads, which throws UserError.
void set_budget(PolicyOptions& options, std::string_view text);

/// True when the profile has a part that the policy uses, or the budgets that were asked for (profile_budget).
bool uses_profile(const Policy& policy, const plan::Profile& profile, bool profile_budget = false);

/// find_policy(name).make(...), validated. Refuses a profile of another model, or one that the policy has no use for.
/// With profile_budget its selecting heads have the profile's budgets (profile_budgets.h).
plan::Plan make_plan(std::string_view name, const plan::ModelShape& shape, const PolicyOptions& options);

/// True where the plan would be made by a guess of layers or heads. Options that are refused guess nothing.
bool guesses(std::string_view name, const plan::ModelShape& shape, PolicyOptions options);

}  // namespace glimpse::policies
