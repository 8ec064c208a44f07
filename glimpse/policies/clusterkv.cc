// ClusterKV: Liu, Li, Zhao, Zhang, Guo, "ClusterKV: Manipulating LLM KV Cache in Semantic Space for Recallable
// Compression", DAC 2025, arXiv 2412.03213 (k-means over single keys; clusters are read whole, in score order).
#include <array>

#include "glimpse/policies/layers.h"
#include "glimpse/policies/selectors.h"

namespace glimpse::policies {
namespace {

const std::array<OptionHelp, 2> kOptions{{
    {"tokens-per-cluster", "1..4096", "80", "prompt tokens of a cluster, on average"},
    {"new-tokens", "1..65536", "320",
     "new tokens that are kept beside the clusters until they make clusters of their own"},
}};

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("clusterkv", kOptions, options);
  read.refuse_block("it clusters single tokens; leave the flag out");
  plan::Selector selector = index_selector(read, "clusterkv", {plan::BudgetRule::tokens, 1024});
  plan::IndexOptions& index = selector.terms[0].index;
  index.tokens_per_cluster = read.integer("tokens-per-cluster", 1, 4096, {}).value_or(index.tokens_per_cluster);
  index.new_tokens = read.integer("new-tokens", 1, 65536, {}).value_or(index.new_tokens);
  plan::Plan plan = own_set_plan(shape, selector, kFirstSparse);
  tidy(plan);
  return plan;
}

}  // namespace

Policy clusterkv_policy() {
  return {
      "clusterkv",
      "every layer from 2 on reads its own best clusters of keys (budget 1024), and new tokens beside it",
      "Liu et al., ClusterKV: Manipulating LLM KV Cache in Semantic Space for Recallable Compression, DAC 2025, arXiv "
      "2412.03213",
      {kOptions.begin(), kOptions.end()},
      make};
}

}  // namespace glimpse::policies
