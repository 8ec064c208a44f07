#include <cmath>

#include "glimpse/plan/checks.h"
#include "glimpse/plan/words.h"

namespace glimpse::plan {
namespace {

// Fields that belong to other rules keep their defaults, so that a plan says nothing that is not done.
void check_fields(const std::string& where, const Retention& r) {
  const Retention usual;
  const bool accumulated = r.rule == RetentionRule::accumulated;
  if (!(r.recent_share >= 0 && r.recent_share <= 1)) {
    refuse(where, "recent_share = {} is outside 0 to 1", r.recent_share);
  }
  if (r.recent_share != usual.recent_share && !accumulated) {
    refuse(where, "recent_share = {} goes with rule accumulated only, not {}", r.recent_share, word(r.rule));
  }
  if (r.per == SetPer::query_head) {
    refuse(where, "per = query-head: a KV head keeps one cache for its group; give kv-head or layer");
  }
  if (r.per != usual.per && !accumulated && r.rule != RetentionRule::last_probability) {
    refuse(where, "per = {} goes with rules accumulated and last-probability only, not {}", word(r.per), word(r.rule));
  }
  if (r.compensates && r.rule != RetentionRule::window) {
    refuse(where, "compensates goes with rule window only, not {}", word(r.rule));
  }
}

}  // namespace

void validate_retention(const Plan& plan, std::size_t index) {
  const std::string where = fmt::format("retention {}", index);
  const Retention& r = plan.retentions[index];
  if (const std::string problem = budget_problem(r.budget); !problem.empty()) refuse(where, "budget: {}", problem);
  in_range(where, "sink", r.sink, 0, kMaxTokens);
  check_fields(where, r);
  if (r.rule == RetentionRule::all) {
    if (r.sink != 0 || !(r.budget == Budget{})) refuse(where, "rule all keeps everything; leave sink and budget out");
    return;
  }
  if (needs_probabilities(r.budget.rule)) {
    refuse(where, "what is kept is counted in tokens or as a share, not {}", to_string(r.budget));
  }
  if (r.rule != RetentionRule::window) {
    if (r.sink != 0) refuse(where, "sink = {} goes with rule window only, not {}", r.sink, word(r.rule));
    return;
  }
  const bool tokens = r.budget.rule == BudgetRule::tokens;
  const double least = tokens ? r.budget.value : r.budget.at_least;
  if (least < r.sink + 1.0) {
    refuse(where, "a budget of {} does not always hold sink {} and the current token; give {}", to_string(r.budget),
           r.sink, tokens ? "more" : fmt::format("a minimum with the share: ,min={}", r.sink + 1));
  }
}

}  // namespace glimpse::plan
