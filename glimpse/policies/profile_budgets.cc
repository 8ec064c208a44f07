#include "glimpse/policies/profile_budgets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "glimpse/base/error.h"

namespace glimpse::policies {
namespace {

using plan::Role;
using plan::RoleKind;

constexpr int kMostTokens = 1 << 30;

/// So little that a policy answers with the least it can have. A minimum of one would be Kascade's of 128.
constexpr plan::Budget kLeast{plan::BudgetRule::ratio, 1e-6, 2};

[[noreturn]] void refuse(const Policy& policy, std::string_view why) {
  throw UserError(
      fmt::format("policy '{}' {}, so --attn-budget profile has no meaning for it; give tokens (1024) or a share (10%)",
                  policy.name, why));
}

void require_one_budget(const Policy& policy, const plan::Plan& plan) {
  const bool selects =
      std::any_of(plan.roles.begin(), plan.roles.end(), [](const Role& role) { return role.kind == RoleKind::select; });
  if (!selects) refuse(policy, "selects no tokens");
  for (const plan::Selector& selector : plan.selectors) {
    const bool parts = std::any_of(selector.terms.begin(), selector.terms.end(),
                                   [](const plan::Term& term) { return term.budget.has_value(); });
    if (parts || selector.terms.empty()) refuse(policy, "splits its budget between parts");
  }
}

/// Tokens that each set must hold, by the slot that it is published in.
class Needs {
 public:
  Needs(const plan::Plan& plan, const plan::BudgetProfile& budgets) : plan_(plan), budgets_(budgets) {
    for (int layer = 0; layer < plan.shape.layers; ++layer) {
      for (int head = 0; head < plan.shape.kv_heads; ++head) {
        const Role& role = plan.role(layer, head);
        if (role.kind == RoleKind::reuse) add(role.reads, layer, head);
        if (role.kind == RoleKind::select && role.attends_set) add({layer, head}, layer, head);
      }
    }
  }
  int of(int layer, int head) const { return tokens_.at(slot(layer, head)); }

 private:
  plan::SlotId slot(int layer, int head) const {
    const Role& role = plan_.role(layer, head);
    const bool shared = plan_.selectors[static_cast<std::size_t>(role.selector)].per == plan::SetPer::layer;
    return {layer, shared ? 0 : head};
  }
  void add(plan::SlotId read, int layer, int head) {
    int& most = tokens_[slot(read.layer, read.head)];
    most = std::max(most,
                    budgets_.tokens[static_cast<std::size_t>(layer) * static_cast<std::size_t>(plan_.shape.kv_heads) +
                                    static_cast<std::size_t>(head)]);
  }

  const plan::Plan& plan_;
  const plan::BudgetProfile& budgets_;
  std::map<plan::SlotId, int> tokens_;
};

/// The share is rounded up to a hundredth of a percent, so that what is printed is what is used.
plan::Budget budget_of(std::int64_t tokens, std::int64_t context, int at_least) {
  constexpr double kParts = 1e4;
  const double share = std::ceil(kParts * static_cast<double>(tokens) / static_cast<double>(context)) / kParts;
  return {plan::BudgetRule::ratio, std::min(1.0, share),
          static_cast<int>(std::clamp<std::int64_t>(tokens, at_least, kMostTokens))};
}

/// Entries of a plan that are made when a role needs them, each once.
template <class Entry>
int place_of(std::vector<Entry>& entries, const Entry& entry) {
  const auto found = std::find(entries.begin(), entries.end(), entry);
  if (found == entries.end()) entries.push_back(entry);
  return static_cast<int>(std::find(entries.begin(), entries.end(), entry) - entries.begin());
}

/// What stays resident of a head whose pages wait elsewhere: as much as was asked for, and all that a step reads.
plan::Retention resident(plan::Retention kept, const plan::Budget& reads, double times) {
  if (kept.rule != plan::RetentionRule::host_tier) return kept;
  kept.budget.value = std::max(kept.budget.value, std::min(1.0, times * reads.value));
  const double least = std::min<double>(times * reads.at_least, kMostTokens);
  kept.budget.at_least = std::max(kept.budget.at_least, static_cast<int>(least));
  return kept;
}

}  // namespace

plan::Plan plan_with_budgets(const Policy& policy, const plan::ModelShape& shape, const PolicyOptions& options) {
  check(options.profile != nullptr && options.profile->budget.has_value(), "a profile with budgets");
  const plan::BudgetProfile& budgets = *options.profile->budget;
  PolicyOptions how = options;
  how.budget.reset();
  if (!uses_profile(policy, *options.profile)) how.profile = nullptr;
  PolicyOptions first = how;
  first.warnings = nullptr;
  require_one_budget(policy, policy.make(shape, first));
  how.budget = kLeast;
  plan::Plan plan = policy.make(shape, how);
  require_one_budget(policy, plan);

  const Needs needs(plan, budgets);
  const double resident_times = options.extra.contains("resident") ? 1 : 2;
  std::vector<plan::Selector> selectors;
  std::vector<plan::Retention> retentions;
  std::vector<Role> roles = plan.roles;
  for (std::size_t i = 0; i < roles.size(); ++i) {
    Role& role = roles[i];
    const int layer = static_cast<int>(i) / shape.kv_heads, head = static_cast<int>(i) % shape.kv_heads;
    if (role.kind == RoleKind::select) {
      plan::Selector selector = plan.selectors[static_cast<std::size_t>(role.selector)];
      const std::int64_t block = selector.block;
      const std::int64_t tokens = (needs.of(layer, head) + block - 1) / block * block;
      selector.budget = budget_of(tokens, budgets.context, selector.budget.at_least);
      role.selector = place_of(selectors, selector);
    }
    if (role.retention < 0) continue;
    plan::Retention kept = plan.retentions[static_cast<std::size_t>(role.retention)];
    if (role.kind == RoleKind::select) {
      kept = resident(kept, selectors[static_cast<std::size_t>(role.selector)].budget, resident_times);
    }
    role.retention = place_of(retentions, kept);
  }
  plan.roles = std::move(roles);
  plan.selectors = std::move(selectors);
  plan.retentions = std::move(retentions);
  return plan;
}

}  // namespace glimpse::policies
