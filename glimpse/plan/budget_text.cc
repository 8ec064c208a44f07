#include "glimpse/plan/budget_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace glimpse::plan {
namespace {

constexpr std::size_t kListed = 4;  // more of one rule are told by the least and the most

bool is_less(const Budget& a, const Budget& b) {
  return a.value != b.value ? a.value < b.value : a.at_least < b.at_least;
}

}  // namespace

std::string budgets_text(std::vector<Budget> budgets, std::string_view between,
                         const std::function<std::string(const Budget&)>& text) {
  const bool alike = std::all_of(budgets.begin(), budgets.end(),
                                 [&](const Budget& budget) { return budget.rule == budgets.front().rule; });
  std::vector<std::string> words;
  for (const Budget& budget : budgets) {
    std::string word = text(budget);
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(std::move(word));
  }
  if (words.size() <= kListed || !alike) return fmt::format("{}", fmt::join(words, between));
  const auto [least, most] = std::minmax_element(budgets.begin(), budgets.end(), is_less);
  return fmt::format("{} to {}", text(*least), text(*most));
}

std::string budget_text(const Plan& plan) {
  std::vector<Budget> budgets;
  for (const Selector& selector : plan.selectors) budgets.push_back(selector.budget);
  for (const Retention& retention : plan.retentions) {
    // A window's budget is its stream's, and a host tier forgets nothing.
    if (forgets_by_statistic(retention.rule)) budgets.push_back(retention.budget);
  }
  return budgets_text(std::move(budgets), ", ", [](const Budget& budget) { return to_string(budget); });
}

}  // namespace glimpse::plan
