#include "glimpse/policies/measured_minimum.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace glimpse::policies {
namespace {

constexpr std::string_view kDensePrefill = "prefill=dense";

struct Timed {
  plan::Budget budget;
  plan::TokenTime time;
};

/// Rows of a method as it comes, and those that differ in how the prompt is read, of which decoding knows nothing.
std::vector<Timed> rows_of(const plan::SpeedProfile& speed, std::string_view method) {
  std::vector<Timed> rows;
  for (const plan::MethodTime& row : speed.methods) {
    if (row.method != method || !(row.options.empty() || row.options == kDensePrefill)) continue;
    rows.push_back({plan::parse_budget(row.budget), row.time});
  }
  return rows;
}

/// The line of a budget that was not measured itself: a token of a set takes as long in each of them.
std::optional<plan::TokenTime> line_of(const std::vector<Timed>& rows, const plan::Budget& budget) {
  const Timed *least = nullptr, *most = nullptr;  // of a number of tokens
  for (const Timed& row : rows) {
    if (row.budget.rule == budget.rule && row.budget.value == budget.value) return row.time;
    if (row.budget.rule != plan::BudgetRule::tokens) continue;
    if (least == nullptr || row.budget.value < least->budget.value) least = &row;
    if (most == nullptr || row.budget.value > most->budget.value) most = &row;
  }
  const bool share = budget.rule == plan::BudgetRule::ratio;
  if (least == most || !(share || budget.rule == plan::BudgetRule::tokens)) return std::nullopt;
  const double ms_per_kept =
      std::max(0.0, (most->time.fixed_ms - least->time.fixed_ms) / (most->budget.value - least->budget.value));
  const double none = least->time.fixed_ms - ms_per_kept * least->budget.value;
  return plan::TokenTime{std::max(0.0, none + (share ? 0 : ms_per_kept * budget.value)),
                         least->time.ms_per_1000 + (share ? 1000 * ms_per_kept * budget.value : 0)};
}

}  // namespace

std::optional<int> faster_from(const plan::SpeedProfile& speed, std::string_view method, const plan::Budget& budget) {
  const std::optional<plan::TokenTime> line = line_of(rows_of(speed, method), budget);
  if (!line) return std::nullopt;
  const double behind = line->fixed_ms - speed.dense.fixed_ms, gain = speed.dense.ms_per_1000 - line->ms_per_1000;
  if (behind <= 0) return 0;
  const double tokens = gain > 0 ? std::floor(1000 * behind / gain) + 1 : kNeverFaster;
  return static_cast<int>(std::min<double>(tokens, kNeverFaster));
}

std::optional<int> measured_minimum(const plan::SpeedProfile& speed, const PolicyOptions& options,
                                    const plan::Plan& plan) {
  const bool plain =
      !options.block && !options.sink && !options.local && !options.profile_budget &&
      std::all_of(options.extra.begin(), options.extra.end(), [](const auto& each) { return each.first == "prefill"; });
  if (!plain || plan.prefill.sparse) return std::nullopt;
  const auto chosen = std::find_if(plan.selectors.begin(), plan.selectors.end(),
                                   [](const plan::Selector& selector) { return !selector.terms.empty(); });
  if (chosen == plan.selectors.end()) return std::nullopt;
  return faster_from(speed, plan.policy, options.budget.value_or(chosen->budget));
}

}  // namespace glimpse::policies
