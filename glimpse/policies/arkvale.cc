// ArkVale: Chen, Wang, Liu, Lin, Luo, Wang, "ArkVale: Efficient Generative LLM Inference with Recallable Key-Value
// Eviction", NeurIPS 2024 (pages of 32 with a bounding digest; pages wait in host memory and are recalled).
#include <fmt/format.h>

#include <algorithm>

#include "glimpse/policies/layers.h"
#include "glimpse/policies/selectors.h"

namespace glimpse::policies {
namespace {

const std::vector<OptionHelp> kOptions =
    with_selector_options({{"resident", "N|X%|auto", "auto",
                            "tokens that stay resident, the rest wait in host memory; auto: twice the budget"}},
                          "arkvale");

plan::Budget resident_budget(const OptionReader& read, const plan::Budget& budget) {
  const std::optional<plan::Budget> given = read.count("resident", kAuto);
  plan::Budget resident = given.value_or(budget);
  if (given && given->rule != budget.rule) {
    read.refuse("resident", *read.text("resident"),
                fmt::format("the budget is {}; give both in tokens or both as a share", to_string(budget)));
  }
  const bool share = budget.rule == plan::BudgetRule::ratio;
  if (!given) resident.value = share ? std::min(1.0, 2 * budget.value) : std::min(2 * budget.value, 1073741824.0);
  if (share) resident.at_least = budget.at_least;
  return resident;
}

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("arkvale", kOptions, options);
  const plan::Selector selector = index_selector(read, "arkvale", {plan::BudgetRule::tokens, 1024});
  plan::Plan plan = own_set_plan(shape, selector, kFirstSparse);
  plan.retentions.push_back({.rule = plan::RetentionRule::host_tier, .budget = resident_budget(read, selector.budget)});
  for (plan::Role& role : plan.roles) {
    if (role.kind == plan::RoleKind::select) role.retention = 0;
  }
  tidy(plan);
  return plan;
}

}  // namespace

Policy arkvale_policy() {
  return {"arkvale",
          "every layer from 2 on reads its own best pages of 32 tokens (budget 1024); cold pages wait in host memory",
          "Chen et al., ArkVale: Efficient Generative LLM Inference with Recallable Key-Value Eviction, NeurIPS 2024",
          kOptions, make};
}

}  // namespace glimpse::policies
