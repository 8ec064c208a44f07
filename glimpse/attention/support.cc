#include <fmt/format.h>

#include "glimpse/attention/runner.h"
#include "glimpse/base/error.h"

namespace glimpse::attention {
namespace {

[[noreturn]] void refuse(const plan::Plan& plan, std::string_view what) {
  throw UserError(fmt::format("plan '{}' asks for {}, which this version does not run yet", plan.policy, what));
}

void require_selector(const plan::Plan& plan, const plan::Selector& selector) {
  if (selector.terms.empty()) return;
  if (selector.terms.size() > 1) refuse(plan, "a selector of several terms");
  const plan::Term& term = selector.terms.front();
  if (term.source != plan::Source::dot && term.source != plan::Source::probability) {
    refuse(plan, "a selector that scores by an index, heat or a gate");
  }
  if (term.budget.has_value()) refuse(plan, "a term with a budget of its own");
  if (!term.query_heads.empty()) refuse(plan, "a term restricted to some query heads");
  if (term.heads == plan::HeadPooling::rank_merge) refuse(plan, "rank-merge over heads");
}

}  // namespace

void Runner::require_supported(const plan::Plan& plan) {
  for (const plan::Selector& selector : plan.selectors) require_selector(plan, selector);
  for (const plan::Combine combine : plan.combine) {
    if (combine != plan::Combine::none) refuse(plan, "combining the sets of a layer");
  }
  for (const plan::Retention& retention : plan.retentions) {
    if (retention.rule != plan::RetentionRule::all && retention.rule != plan::RetentionRule::window) {
      refuse(plan, "a retention other than 'all' and 'window'");
    }
  }
  for (const plan::Role& role : plan.roles) {
    if (role.scope.lifetime != plan::Lifetime::step) refuse(plan, "sets that outlive a step");
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
  if (plan.prefill.sparse) refuse(plan, "sparse prefill");
  if (plan.prefill.observe != plan::Observe::none) refuse(plan, "observing the prompt's attention");
  if (plan.feedback != plan::Feedback::none) refuse(plan, "feedback of probabilities");
}

}  // namespace glimpse::attention
