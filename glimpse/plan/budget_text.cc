#include "glimpse/plan/budget_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace glimpse::plan {

std::string budget_text(const Plan& plan) {
  std::vector<std::string> budgets;
  const auto add = [&](const Budget& budget) {
    std::string text = to_string(budget);
    if (std::find(budgets.begin(), budgets.end(), text) == budgets.end()) budgets.push_back(std::move(text));
  };
  for (const Selector& selector : plan.selectors) add(selector.budget);
  for (const Retention& retention : plan.retentions) {
    // A window's budget is its stream's, and a host tier forgets nothing.
    if (forgets_by_statistic(retention.rule)) add(retention.budget);
  }
  return fmt::format("{}", fmt::join(budgets, ", "));
}

}  // namespace glimpse::plan
