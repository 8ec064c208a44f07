#include "glimpse/plan/plan.h"

#include <algorithm>
#include <cmath>

#include "glimpse/plan/checks.h"

namespace glimpse::plan {

bool covers(const Budget& budget, std::int64_t tokens) {
  switch (budget.rule) {
    case BudgetRule::tokens:
    case BudgetRule::ratio:
      return budget_tokens(budget, tokens) >= tokens;
    case BudgetRule::mass:
      return budget.value >= 1 || tokens <= 1;
    case BudgetRule::threshold:
      return tokens <= 1;
  }
  return false;
}

namespace {

/// see(budget) for each that must cover a text for the role to read all of it.
template <class See>
void see_limits(const Plan& plan, const Role& role, const See& see) {
  if (role.retention >= 0) {
    const Retention& kept = plan.retentions[static_cast<std::size_t>(role.retention)];
    if (forgets(kept.rule)) see(kept.budget);
  }
  const auto see_selector = [&](const Role& owner) {
    see(plan.selectors[static_cast<std::size_t>(owner.selector)].budget);
  };
  switch (role.kind) {
    case RoleKind::dense:
      break;
    case RoleKind::select:
      if (role.attends_set) see_selector(role);
      break;
    case RoleKind::stream:
      see_selector(role);
      break;
    case RoleKind::reuse:
      see_selector(plan.role(role.reads.layer, role.reads.head));
      break;
  }
}

constexpr std::int64_t kRowUnit = 16;  ///< tokens in which tables by budget count

// The local window of a chunk tree is its buffer of new tokens.
bool has_buffer(const Selector& selector) {
  return selector.terms.size() == 1 && selector.terms[0].source == Source::chunk_tree;
}

// 0.07 * 100 is 7.000000000000001 in doubles; the share that the user wrote gives 7.
std::int64_t share_rounded_up(double share, std::int64_t tokens) {
  const double product = share * static_cast<double>(tokens);
  const double nearest = std::round(product);
  const bool whole = std::abs(product - nearest) <= 1e-12 * std::max(1.0, nearest);
  return static_cast<std::int64_t>(whole ? nearest : std::ceil(product));
}

double tokens_at(const std::vector<BudgetRow>& rows, double budget) {
  const BudgetRow& first = rows.front();
  if (budget <= first.budget) return first.tokens * (budget / first.budget);
  const auto above = std::find_if(rows.begin(), rows.end(), [&](const BudgetRow& row) { return row.budget > budget; });
  if (above == rows.end()) return rows.back().tokens;
  const BudgetRow& below = *(above - 1);
  const double part = (budget - below.budget) / (above->budget - below.budget);
  return below.tokens + part * (above->tokens - below.tokens);
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
  const std::int64_t sink = blocks_for(selector.sink, block) * block;
  const bool has_window = selector.local > 0 || !selector.local_rows.empty();
  if (!selector.counts_local) return std::max<std::int64_t>(sink + (has_window ? 0 : block), 1);
  const auto with_window = [&](std::int64_t window) {
    return sink + (blocks_for(std::max<std::int64_t>(window, 1) - 1, block) + 1) * block;
  };
  const bool tokens = selector.budget.rule == BudgetRule::tokens;
  if (selector.local_share > 0) {
    if (tokens) return with_window(window_tokens(selector, static_cast<std::int64_t>(selector.budget.value)));
    // Sink and window are share * k of k tokens, rounded up, and blocks add at most 3 (block - 1): the rest,
    // (1 - share) * k rounded down, must hold these.
    const double rounding = 3.0 * static_cast<double>(block - 1) / (1 - selector.local_share);
    return std::max(with_window(1), static_cast<std::int64_t>(std::ceil(std::min(rounding, double{kMaxTokens}))));
  }
  if (!selector.local_rows.empty()) {
    // The window takes the largest share of the budget at a row, and blocks add at most 2 (block - 1) to it.
    double share = 0;
    for (const BudgetRow& row : selector.local_rows)
      share = std::max(share, static_cast<double>(row.tokens) / row.budget);
    const double fixed = static_cast<double>(sink + 2 * (block - 1));
    return std::max(with_window(1), static_cast<std::int64_t>(std::ceil(std::min(fixed / (1 - share), 1e9))));
  }
  if (has_buffer(selector)) {
    if (tokens) return with_window(window_tokens(selector, static_cast<std::int64_t>(selector.budget.value)));
    return std::max(with_window(1), std::min(with_window(selector.local), 2 * sink));
  }
  return with_window(selector.local);
}

std::int64_t window_tokens(const Selector& selector, std::int64_t tokens) {
  const std::int64_t budget = budget_tokens(selector.budget, tokens);
  std::int64_t window = selector.local;
  if (selector.local_share > 0) {
    window = std::max<std::int64_t>(share_rounded_up(selector.local_share, budget) - selector.sink, 1);
  } else if (!selector.local_rows.empty()) {
    window = local_at(selector.local_rows, static_cast<double>(budget));
  } else if (selector.terms.empty() && selector.budget.rule == BudgetRule::ratio) {
    window = budget - selector.sink;
  } else if (has_buffer(selector)) {
    window = std::min(window, budget / 2);
  }
  return std::clamp<std::int64_t>(window, 0, std::max<std::int64_t>(tokens, 0));
}

std::int64_t local_at(const std::vector<BudgetRow>& rows, double budget) {
  return static_cast<std::int64_t>(tokens_at(rows, budget)) / kRowUnit * kRowUnit;
}

std::int64_t choice_at(const std::vector<BudgetRow>& rows, double budget) {
  const double units = tokens_at(rows, budget) / static_cast<double>(kRowUnit);
  const double whole = budget < rows.front().budget ? std::floor(units) : std::round(units);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(whole)) * kRowUnit;
}

std::int64_t term_tokens(const Selector& selector, const Term& term, std::int64_t tokens) {
  if (term.budget_rows.empty()) return term.budget ? budget_tokens(*term.budget, tokens) : 0;
  const auto budget = static_cast<double>(budget_tokens(selector.budget, tokens));
  return blocks_for(choice_at(term.budget_rows, budget), selector.block) * selector.block;
}

bool is_index(Source source) {
  return source == Source::page_bounds || source == Source::chunk_tree || source == Source::token_clusters ||
         source == Source::landmarks || source == Source::gate;
}

bool reads_heat(const Selector& selector) {
  return std::any_of(selector.terms.begin(), selector.terms.end(),
                     [](const Term& term) { return term.source == Source::heat; });
}

bool reads_heat(const Plan& plan) {
  return std::any_of(plan.selectors.begin(), plan.selectors.end(), [](const Selector& s) { return reads_heat(s); });
}

bool searches_index(const Plan& plan) {
  return std::any_of(plan.selectors.begin(), plan.selectors.end(), [](const Selector& selector) {
    return !selector.terms.empty() && is_index(selector.terms.front().source);
  });
}

bool keeps_nothing(const Plan& plan) {
  return plan.feedback == Feedback::none && plan.retentions.empty() && !searches_index(plan);
}

bool forgets(RetentionRule rule) {
  return rule != RetentionRule::all && rule != RetentionRule::host_tier;
}

bool forgets(const Plan& plan) {
  return std::any_of(plan.retentions.begin(), plan.retentions.end(),
                     [](const Retention& kept) { return forgets(kept.rule); });
}

bool forgets_by_statistic(RetentionRule rule) {
  return rule == RetentionRule::accumulated || rule == RetentionRule::last_probability || rule == RetentionRule::stamps;
}

bool is_dense_at(const Plan& plan, std::int64_t tokens) {
  if (tokens < plan.min_context) return true;
  return std::all_of(plan.roles.begin(), plan.roles.end(), [&](const Role& role) {
    bool all = true;
    see_limits(plan, role, [&](const Budget& budget) { all = all && covers(budget, tokens); });
    return all;
  });
}

std::vector<Budget> limits_of_dense(const Plan& plan) {
  std::vector<Budget> limits;
  for (const Role& role : plan.roles) {
    see_limits(plan, role, [&](const Budget& budget) {
      if (std::find(limits.begin(), limits.end(), budget) == limits.end()) limits.push_back(budget);
    });
  }
  return limits;
}

}  // namespace glimpse::plan
