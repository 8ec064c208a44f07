#include "glimpse/plan/plan.h"

#include <algorithm>

#include "glimpse/plan/checks.h"

namespace glimpse::plan {
namespace {

// True when the budget lets every token of the context in, whatever the scores.
bool covers(const Budget& budget, std::int64_t tokens) {
  switch (budget.rule) {
    case BudgetRule::tokens:
    case BudgetRule::ratio:
      return budget_tokens(budget, tokens) >= tokens;
    case BudgetRule::mass:
    case BudgetRule::coverage:
      return budget.value >= 1 || tokens <= 1;
    case BudgetRule::threshold:
      return tokens <= 1;
  }
  return false;
}

bool covers(const Plan& plan, const Role& role, std::int64_t tokens) {
  if (role.retention >= 0) {
    const Retention& kept = plan.retentions[static_cast<std::size_t>(role.retention)];
    if (forgets(kept.rule) && !covers(kept.budget, tokens)) return false;
  }
  const auto selector_of = [&](const Role& owner) -> const Budget& {
    return plan.selectors[static_cast<std::size_t>(owner.selector)].budget;
  };
  switch (role.kind) {
    case RoleKind::dense:
      return true;
    case RoleKind::select:
      return !role.attends_set || covers(selector_of(role), tokens);
    case RoleKind::stream:
      return covers(selector_of(role), tokens);
    case RoleKind::reuse:
      return covers(selector_of(plan.role(role.reads.layer, role.reads.head)), tokens);
  }
  return false;
}

std::int64_t blocks_for(std::int64_t tokens, std::int64_t block) {
  return (tokens + block - 1) / block;
}

}  // namespace

Plan dense_plan(const ModelShape& shape) {
  validate_shape(shape);
  Plan plan;
  plan.shape = shape;
  plan.roles.resize(static_cast<std::size_t>(shape.layers) * static_cast<std::size_t>(shape.kv_heads));
  plan.combine.resize(static_cast<std::size_t>(shape.layers), Combine::none);
  return plan;
}

std::int64_t always_tokens(const Selector& selector) {
  const std::int64_t block = selector.block;
  const std::int64_t window = std::max(selector.local, 1);  // the current token is always read
  return (blocks_for(selector.sink, block) + blocks_for(window - 1, block) + 1) * block;
}

std::int64_t window_tokens(const Selector& selector, std::int64_t tokens) {
  const bool shared = selector.terms.empty() && selector.budget.rule == BudgetRule::ratio;
  const std::int64_t window = shared ? budget_tokens(selector.budget, tokens) - selector.sink : selector.local;
  return std::clamp<std::int64_t>(window, 0, std::max<std::int64_t>(tokens, 0));
}

bool is_dense_at(const Plan& plan, std::int64_t tokens) {
  if (tokens < plan.min_context) return true;
  return std::all_of(plan.roles.begin(), plan.roles.end(),
                     [&](const Role& role) { return covers(plan, role, tokens); });
}

}  // namespace glimpse::plan
