#include "glimpse/attention/cuda/supported.h"

#include <fmt/format.h>

#include "glimpse/attention/choose.h"
#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/parts.h"

namespace glimpse::attention::cuda {
namespace {

[[noreturn]] void refuse(const plan::Plan& plan, std::string_view what, std::string_view cure = {}) {
  throw UserError(fmt::format("method '{}' needs {}, which runs on the CPU alone for now; {}leave out --device",
                              plan.policy, what, cure));
}

bool counts_tokens(const plan::Budget& budget) {
  return budget.rule == plan::BudgetRule::tokens || budget.rule == plan::BudgetRule::ratio;
}

/// A set of what query heads choose, each for itself, and of heat (EvoSparse).
void require_parts(const plan::Plan& plan, const plan::Selector& selector) {
  const plan::Term& first = selector.terms.front();
  if (selector.per != plan::SetPer::layer || !counts_tokens(selector.budget))
    refuse(plan, "sets put together from parts for each head, or by mass");
  if (plan::forgets(plan)) refuse(plan, "heat of tokens that are forgotten");
  if (first.source == plan::Source::heat) return;
  if (selector.terms.size() > 2 || (selector.terms.size() == 2 && selector.terms[1].source != plan::Source::heat))
    refuse(plan, "sets put together from more than scores and heat");
  if (!first.budget || first.budget->rule != plan::BudgetRule::tokens)
    refuse(plan, "a scoring part whose size is no number of tokens");
  const auto heads = first.query_heads.empty() ? static_cast<std::size_t>(plan.shape.heads) : first.query_heads.size();
  const double units = static_cast<double>(heads) * first.budget->value / selector.block;
  if (units > kernels::cuda::kMostCandidates) {
    refuse(plan, fmt::format("{:.0f} blocks that {} heads of a layer choose", units, heads),
           fmt::format("give fewer of them (--attn-opt retrieval-blocks), {} in a layer at most, or ",
                       kernels::cuda::kMostCandidates));
  }
}

/// Heat is kept by the blocks of one selector, and what a layer joins was cut as its own set is.
void require_unions(const plan::Plan& plan) {
  const plan::Selector* heated = nullptr;
  for (const plan::Selector& selector : plan.selectors) {
    if (selector.terms.empty() || !plan::reads_heat(plan)) continue;
    if (heated == nullptr) heated = &selector;
    if (selector.block != heated->block || selector.per != plan::SetPer::layer)
      refuse(plan, "heat beside sets of other blocks, or of single heads");
  }
  const auto selector_of = [&](const plan::Role& role) -> const plan::Selector& {
    return plan.selectors[static_cast<std::size_t>(role.selector)];
  };
  for (const plan::Role& role : plan.roles) {
    if (role.kind != plan::RoleKind::select || role.reads.layer < 0) continue;
    plan::Selector own = selector_of(role), other = selector_of(plan.role(role.reads.layer, role.reads.head));
    const bool heat = own.terms.size() == 1 && own.terms.front().source == plan::Source::heat;
    own.terms = other.terms = {};
    if (!heat || !(own == other)) refuse(plan, "unions of sets other than of heat and an equal selector's choice");
  }
}

}  // namespace

void require_supported(const plan::Plan& plan) {
  for (const plan::Selector& selector : plan.selectors) {
    const bool window = selector.terms.empty();
    if (!window && is_union(selector)) require_parts(plan, selector);
  }
  require_unions(plan);
  for (const plan::Role& role : plan.roles) {
    if (role.retention < 0 || role.kind == plan::RoleKind::dense) continue;
    const plan::Retention& kept = plan.retentions[static_cast<std::size_t>(role.retention)];
    if (plan::forgets_by_statistic(kept.rule)) refuse(plan, "eviction by a statistic in a head that is not dense");
  }
}

}  // namespace glimpse::attention::cuda
