#include "glimpse/attention/cuda/supported.h"

#include <fmt/format.h>

#include "glimpse/base/error.h"
#include "glimpse/kernels/views.h"

namespace glimpse::attention::cuda {
namespace {

using plan::GroupPooling;
using plan::HeadPooling;

[[noreturn]] void refuse(const plan::Plan& plan, std::string_view what, std::string_view cure = {}) {
  throw UserError(fmt::format("method '{}' needs {}, which runs on the CPU alone for now; {}leave out --device",
                              plan.policy, what, cure));
}

bool pools_by_mean(GroupPooling pooling) {
  return pooling == GroupPooling::mean_probability || pooling == GroupPooling::mean_score ||
         pooling == GroupPooling::mean_query;
}

/// Bounds hang on pages, and a search pools them as scores.
void require_index(const plan::Plan& plan, const plan::Selector& selector) {
  const plan::Term& term = selector.terms.front();
  if (term.source != plan::Source::page_bounds) refuse(plan, "an index over keys other than the bounds of pages");
  if (term.index.digest != plan::Digest::min_max)
    refuse(plan, "pages told by other than the min and max of their keys");
  if (selector.block % kernels::kPageTokens != 0) {
    refuse(plan, fmt::format("blocks of {} tokens", selector.block),
           fmt::format("give a multiple of {} (--attn-block), or ", kernels::kPageTokens));
  }
  const bool pools = term.group == GroupPooling::max_score || term.group == GroupPooling::mean_score ||
                     term.group == GroupPooling::none;
  if (!pools) refuse(plan, "bounds pooled as probabilities or by a mean query");
}

void require_selector(const plan::Plan& plan, const plan::Selector& selector) {
  if (selector.terms.empty()) return;  // a window
  const plan::Term& term = selector.terms.front();
  if (plan::is_index(term.source)) return require_index(plan, selector);
  if (plan::reads_heat(selector)) refuse(plan, "heat");
  if (selector.terms.size() > 1 || term.budget || !term.query_heads.empty())
    refuse(plan, "sets put together from parts");
  if (term.heads == HeadPooling::rank_merge) refuse(plan, "sets merged by rank");
  if (term.group == GroupPooling::mean_query && term.source == plan::Source::probability) {
    refuse(plan, "the softmax of a mean query");
  }
  if (selector.per != plan::SetPer::layer || plan.shape.kv_heads == 1) return;
  const bool same = pools_by_mean(term.group) ? term.heads == HeadPooling::mean : term.heads == HeadPooling::max;
  if (!same) refuse(plan, "heads and groups that are pooled differently");
}

}  // namespace

void require_supported(const plan::Plan& plan) {
  if (plan.prefill.sparse) refuse(plan, "a sparse prefill", "add --attn-opt prefill=dense, or ");
  if (plan::reads_heat(plan)) refuse(plan, "heat");
  for (const plan::Selector& selector : plan.selectors) require_selector(plan, selector);
  for (const plan::Combine combine : plan.combine) {
    if (combine != plan::Combine::none) refuse(plan, "unions of sets");
  }
  for (const plan::Retention& retention : plan.retentions) {
    if (retention.rule == plan::RetentionRule::host_tier)
      refuse(plan, "a host tier", "add --attn-opt resident=all, or ");
    if (retention.compensates) refuse(plan, "a mean token");
  }
  for (const plan::Role& role : plan.roles) {
    if (role.retention < 0 || role.kind == plan::RoleKind::dense) continue;
    const plan::Retention& kept = plan.retentions[static_cast<std::size_t>(role.retention)];
    if (plan::forgets_by_statistic(kept.rule)) refuse(plan, "eviction by a statistic in a head that is not dense");
  }
}

}  // namespace glimpse::attention::cuda
