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

/// As the method comes, or with another way to read the prompt, of which decoding knows nothing.
bool is_plain(std::string_view options) {
  return options.empty() || options == kDensePrefill;
}

std::vector<Timed> rows_of(const plan::SpeedProfile& speed, std::string_view method) {
  std::vector<Timed> rows;
  for (const plan::MethodTime& row : speed.methods) {
    if (row.method != method || !is_plain(row.options)) continue;
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

/// The budget of a plan that these options made; none where they have more than a budget, and where the plan reads
/// prompts sparsely.
std::optional<plan::Budget> plain_budget(const PolicyOptions& options, const plan::Plan& plan) {
  const bool plain =
      !options.block && !options.sink && !options.local && !options.profile_budget &&
      std::all_of(options.extra.begin(), options.extra.end(), [](const auto& each) { return each.first == "prefill"; });
  if (!plain || plan.prefill.sparse) return std::nullopt;
  const auto chosen = std::find_if(plan.selectors.begin(), plan.selectors.end(),
                                   [](const plan::Selector& selector) { return !selector.terms.empty(); });
  if (chosen == plan.selectors.end()) return std::nullopt;
  return options.budget.value_or(chosen->budget);
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
  const std::optional<plan::Budget> budget = plain_budget(options, plan);
  return budget ? faster_from(speed, plan.policy, *budget) : std::nullopt;
}

std::string measured_losses(const plan::Profile& profile, const PolicyOptions& options, const plan::Plan& plan) {
  const std::optional<plan::Budget> budget = plain_budget(options, plan);
  if (!budget) return "";
  std::vector<const plan::Kept*> rows;
  for (const plan::Kept& row : profile.kept) {
    if (row.method != plan.policy || !is_plain(row.options)) continue;
    const plan::Budget measured = plan::parse_budget(row.budget);
    if (measured.rule == budget->rule && measured.value == budget->value) rows.push_back(&row);
  }
  return plan::not_for(rows);
}

}  // namespace glimpse::policies
