// A policy: a pure function (model shape, options) -> Plan. It touches no tensor and no device. Any thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/plan/plan.h"

namespace glimpse::policies {

/// What the command line's --attn-* flags say, before a policy has read it. Unset: the policy's default.
struct PolicyOptions {
  std::optional<plan::Budget> budget;        ///< --attn-budget
  std::optional<int> block;                  ///< --attn-block
  std::optional<int> sink;                   ///< --attn-sink
  std::optional<int> local;                  ///< --attn-local
  int min_context = 0;                       ///< --attn-min-ctx
  std::map<std::string, std::string> extra;  ///< --attn-opt key=value
};

/// One row of a policy's option table: what `--attn-opt` takes and `glimpse plan --help-attn` prints.
struct OptionHelp {
  std::string_view key;
  std::string_view values;
  std::string_view default_value;
  std::string_view help;
};

struct Policy {
  std::string_view name;
  std::string_view help;   ///< one line
  std::string_view paper;  ///< citation, empty for `full`
  std::vector<OptionHelp> options;
  /// Throws UserError for an unknown key, a value out of range, an option that this policy has no use for.
  std::function<plan::Plan(const plan::ModelShape&, const PolicyOptions&)> make;
};

/// Every policy, in the order that help prints them. The only list: adding a method is one file and one line here.
std::span<const Policy> registry();

/// Throws UserError with the nearest name.
const Policy& find_policy(std::string_view name);

/// find_policy(name).make(...), validated.
plan::Plan make_plan(std::string_view name, const plan::ModelShape& shape, const PolicyOptions& options);

// The methods, one file each.
Policy full_policy();
Policy streaming_policy();
Policy tidal_policy();

}  // namespace glimpse::policies
