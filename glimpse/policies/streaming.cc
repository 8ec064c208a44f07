// StreamingLLM: Xiao, Tian, Chen, Han, Lewis, "Efficient Streaming Language Models with Attention Sinks", ICLR 2024,
// arXiv 2309.17453, section 3.2 (rolling KV cache with attention sinks; 4 sinks by its section 4.4).
// Positions stay those of the text: the paper renumbers them inside the cache, the comparisons that use it as a
// baseline do not.
#include <algorithm>

#include "glimpse/policies/selectors.h"

namespace glimpse::policies {
namespace {

constexpr int kSink = 4;
constexpr double kBudget = 1024;

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("streaming", {}, options);
  read.refuse_block("it keeps single tokens; leave the flag out");
  read.refuse_local("the window is what the budget leaves after the sink; set --attn-budget and --attn-sink");

  plan::Selector selector = stream_selector(read, kSink, {plan::BudgetRule::tokens, kBudget});
  plan::Plan plan = plan::dense_plan(shape);
  plan.retentions.push_back({plan::RetentionRule::window, selector.sink, selector.budget});
  plan.selectors.push_back(std::move(selector));
  std::fill(plan.roles.begin(), plan.roles.end(),
            plan::Role{.kind = plan::RoleKind::stream, .selector = 0, .retention = 0});
  return plan;
}

}  // namespace

Policy streaming_policy() {
  return {"streaming",
          "first tokens and a sliding window inside the budget (default 1024, --attn-sink 4); forgets the rest",
          "Xiao et al., Efficient Streaming Language Models with Attention Sinks, ICLR 2024, arXiv 2309.17453",
          {},
          make};
}

}  // namespace glimpse::policies
