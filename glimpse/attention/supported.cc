#include <fmt/format.h>

#include "glimpse/attention/program.h"
#include "glimpse/base/error.h"

namespace glimpse::attention {
namespace {

[[noreturn]] void refuse(const plan::Plan& plan, std::string_view what) {
  throw UserError(fmt::format("plan '{}' asks for {}, which this version does not run yet", plan.policy, what));
}

void require_selector(const plan::Plan& plan, const plan::Selector& selector) {
  if (selector.terms.empty()) return;
  const plan::Term& first = selector.terms.front();
  const bool heat = selector.terms.back().source == plan::Source::heat;
  const bool one = selector.terms.size() == 1;
  const bool with_heat = selector.terms.size() == 2 && heat && first.source == plan::Source::dot && first.budget;
  if (!one && !with_heat) refuse(plan, "terms other than one, or q.k with a budget of its own and heat");
  if (heat && selector.per != plan::SetPer::layer) refuse(plan, "heat in a set that is not the layer's");
  const bool parts = selector.per == plan::SetPer::layer && first.source == plan::Source::dot && first.budget;
  if (one && first.budget && !parts)
    refuse(plan, "a term with a budget of its own, unless it is q.k for a layer's set");
  if (one && !first.query_heads.empty() && !parts) {
    refuse(plan, "a term of some query heads, unless it is q.k with a budget for a layer's set");
  }
  // A union takes the best of every scoring query head, and of all of these.
  const bool best = first.group == plan::GroupPooling::none &&
                    (first.heads == plan::HeadPooling::max || first.heads == plan::HeadPooling::none);
  if (first.budget && !best) refuse(plan, "a budgeted term that pools otherwise than by max over query heads");
  if (plan::reads_heat(plan) && selector.per == plan::SetPer::query_head) {
    refuse(plan, "heat beside sets per query head");
  }
}

/// What a layer's set joins from an earlier one: the choice that the latter's budgeted q.k term made.
void check_unions(const plan::Plan& plan) {
  const auto term_of = [&](const plan::Role& role) -> const plan::Term& {
    return plan.selectors[static_cast<std::size_t>(role.selector)].terms.front();
  };
  for (int layer = 0; layer < plan.shape.layers; ++layer) {
    if (plan.combine[static_cast<std::size_t>(layer)] != plan::Combine::union_sets) continue;
    for (int head = 0; head < plan.shape.kv_heads; ++head) {
      const plan::Role& role = plan.role(layer, head);
      if (role.kind != plan::RoleKind::select) continue;
      if (role.reads.layer < 0) refuse(plan, "a union in which a head joins no earlier layer's set");
      if (plan.selectors[static_cast<std::size_t>(role.selector)].per != plan::SetPer::layer) {
        refuse(plan, "union of sets per head");
      }
      const plan::Term& own = term_of(role);
      if (own.source != plan::Source::heat && !own.budget) {
        refuse(plan, "a union whose own term has no budget of its own");
      }
      const plan::Term& source = term_of(plan.role(role.reads.layer, role.reads.head));
      if (source.source != plan::Source::dot || !source.budget) {
        refuse(plan, "a union with a set that no budgeted q.k term chose");
      }
    }
  }
}

}  // namespace

void require_supported(const plan::Plan& plan) {
  for (const plan::Selector& selector : plan.selectors) require_selector(plan, selector);
  check_unions(plan);
  bool statistics = false;
  for (const plan::Retention& retention : plan.retentions) {
    statistics |= plan::forgets_by_statistic(retention.rule);
  }
  bool heat = false;
  for (const plan::Role& role : plan.roles) {
    if (role.kind == plan::RoleKind::select) {
      const plan::Selector& selector = plan.selectors[static_cast<std::size_t>(role.selector)];
      const bool by_heat = selector.terms.back().source == plan::Source::heat;
      heat |= by_heat;
      if (selector.terms.front().index.key_rank > 0 && !role.attends_set) {
        refuse(plan, "low-rank keys for heads that attend to everything");
      }
      if (by_heat && !role.attends_set) refuse(plan, "heads that select by heat and attend to everything");
      if (!selector.terms.front().query_heads.empty() && !role.attends_set) {
        refuse(plan, "a term of some query heads where the heads attend to everything");
      }
    }
    const bool windowed = role.retention >= 0 &&
                          plan.retentions[static_cast<std::size_t>(role.retention)].rule == plan::RetentionRule::window;
    if (!windowed) continue;
    if (role.kind != plan::RoleKind::stream) refuse(plan, "window retention for a head that does not stream");
    const plan::Retention& kept = plan.retentions[static_cast<std::size_t>(role.retention)];
    const plan::Selector& read = plan.selectors[static_cast<std::size_t>(role.selector)];
    if (kept.sink != read.sink || !(kept.budget == read.budget)) {
      refuse(plan, "a stream that keeps another sink or budget than it reads");
    }
  }
  if (heat && statistics) refuse(plan, "heat beside heads that forget by probability");
  if (plan.prefill.sparse && plan.prefill.observe != plan::Observe::none) {
    refuse(plan, "observing a sparse prefill");
  }
}

}  // namespace glimpse::attention
