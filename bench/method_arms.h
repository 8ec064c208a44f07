// What the measuring programs compare: methods written as one word, with their options, at each of several budgets.
// Values; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "glimpse/plan/plan.h"
#include "glimpse/plan/profile.h"

namespace glimpse::bench {

/// One method at one budget.
struct Arm {
  std::string method;  ///< as it was written: "kascade/pooling=query/prefill=dense"
  std::string budget;  ///< as it was written; empty: the method's own, or none
  plan::Plan plan;     ///< dense where refused
  /// The plan that its prompt is prefilled by, where a sparse prefill has a budget of its own; else `plan`.
  plan::Plan prefill_plan;
  std::string refused;  ///< why there is no plan; empty: there is
  std::string label() const { return budget.empty() ? method : method + " " + budget; }
};

struct ArmRequest {
  /// NAME[/KEY=VALUE...], with the keys of --attn-opt and block, sink and local for those flags; or "all".
  std::vector<std::string> methods;
  std::vector<std::string> budgets;           ///< as --attn-budget, or parted at its comma: "10%", "min=128"
  bool variants = false;                      ///< the papers' ablations beside the methods
  std::optional<std::string> sparse_prefill;  ///< the budget of every sparse prefill
  const plan::Profile* profile = nullptr;     ///< for the methods that use it; borrowed for the call
};

/// The ablations that `variants` adds.
const std::vector<std::string>& variant_methods();

/// `full` first, then every method at every budget; kascade at its own 10 % too. A method of "all" that cannot be made
/// is an arm that says why. Throws UserError for what was asked for by name and can be made at no budget, for a
/// method or budget given twice, and for a budget that is none. `warnings` gets what policies warn of, each line once.
std::vector<Arm> make_arms(const plan::ModelShape& shape, const ArmRequest& request,
                           std::vector<std::string>& warnings);

}  // namespace glimpse::bench
