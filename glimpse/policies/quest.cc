// Quest: Tang, Zhao, Zhu, Xiao, Kasikci, Han, "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference",
// ICML 2024, arXiv 2406.10774, section 3.3 (pages of 16, bounded by the elementwise min and max of their keys).
#include <array>

#include "glimpse/policies/layers.h"
#include "glimpse/policies/selectors.h"

namespace glimpse::policies {
namespace {

constexpr std::array<std::string_view, 2> kSets{"kv-head", "query-head"};

const std::vector<OptionHelp> kOptions = with_selector_options(
    {{"set", "kv-head|query-head", "kv-head",
      "for whom a set is made: one per KV head by the max over its group, or one per query head as in the paper"}},
    "quest");

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("quest", kOptions, options);
  plan::Selector selector = index_selector(read, "quest", {plan::BudgetRule::tokens, 1024});
  if (read.choice("set", kSets) == "query-head") per_query_head(selector);
  plan::Plan plan = own_set_plan(shape, selector, kFirstSparse);
  tidy(plan);
  return plan;
}

}  // namespace

Policy quest_policy() {
  return {
      "quest",
      "every layer from 2 on reads its own best pages of 16 tokens, bounded by their keys' min and max (budget 1024)",
      "Tang et al., Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference, ICML 2024, arXiv "
      "2406.10774",
      kOptions, make};
}

}  // namespace glimpse::policies
