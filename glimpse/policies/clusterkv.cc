// ClusterKV: Liu, Li, Zhao, Zhang, Guo, "ClusterKV: Manipulating LLM KV Cache in Semantic Space for Recallable
// Compression", DAC 2025, arXiv 2412.03213 (k-means over single keys; clusters are read whole, in score order).
#include "glimpse/policies/layers.h"
#include "glimpse/policies/selectors.h"

namespace glimpse::policies {
namespace {

const std::vector<OptionHelp> kOptions = with_selector_options({}, "clusterkv");

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("clusterkv", kOptions, options);
  read.refuse_block("it clusters single tokens; leave the flag out");
  const plan::Selector selector = index_selector(read, "clusterkv", {plan::BudgetRule::tokens, 1024});
  plan::Plan plan = own_set_plan(shape, selector, kFirstSparse);
  tidy(plan);
  return plan;
}

}  // namespace

Policy clusterkv_policy() {
  return {
      "clusterkv", "every layer from 2 on reads its own best clusters of keys (budget 1024), and new tokens beside it",
      "Liu et al., ClusterKV: Manipulating LLM KV Cache in Semantic Space for Recallable Compression, DAC 2025, arXiv "
      "2412.03213",
      kOptions, make};
}

}  // namespace glimpse::policies
