#include "glimpse/policies/streaming_heads.h"

#include "glimpse/policies/layers.h"
#include "glimpse/policies/selectors.h"

namespace glimpse::policies {

plan::Plan streaming_heads_plan(const OptionReader& read, const plan::ModelShape& shape, const RetrievalChoice& choice,
                                bool compensates) {
  constexpr int kSink = 4;
  read.refuse_block("streaming heads keep single tokens; leave the flag out");
  read.refuse_local("the window is what the budget leaves after the sink; set --attn-budget and --attn-sink");
  plan::Plan plan = plan::dense_plan(shape);
  plan::Selector selector = stream_selector(read, kSink, {plan::BudgetRule::tokens, 1024});
  plan.retentions.push_back({.rule = plan::RetentionRule::window,
                             .sink = selector.sink,
                             .budget = selector.budget,
                             .compensates = compensates});
  plan.selectors.push_back(std::move(selector));
  const std::vector<char> retrieval = retrieval_kv_heads(read, shape, choice);
  for (std::size_t i = 0; i < plan.roles.size(); ++i) {
    if (retrieval[i] != 0) continue;
    plan.roles[i] = {.kind = plan::RoleKind::stream, .selector = 0, .retention = 0};
  }
  tidy(plan);
  return plan;
}

}  // namespace glimpse::policies
