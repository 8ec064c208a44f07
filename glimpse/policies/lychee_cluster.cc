// LycheeCluster: Li, Liu, Lin, Hu, Zhang, "LycheeCluster: Efficient Long-Context Inference with Structure-Aware
// Chunking and Hierarchical KV Indexing", sections 3.1 to 3.4 and appendix A.
#include "glimpse/policies/layers.h"
#include "glimpse/policies/selectors.h"

namespace glimpse::policies {
namespace {

const std::vector<OptionHelp> kOptions = with_selector_options({}, "lychee-cluster");

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("lychee-cluster", kOptions, options);
  read.refuse_block("its units are chunks of the text; leave the flag out");
  const plan::Selector selector = index_selector(read, "lychee-cluster", {plan::BudgetRule::tokens, 1024});
  plan::Plan plan = own_set_plan(shape, selector, kFirstSparse);
  tidy(plan);
  return plan;
}

}  // namespace

Policy lychee_cluster_policy() {
  return {
      "lychee-cluster",
      "every layer from 2 on reads its own best chunks of the text, found in a tree of clusters (budget 1024)",
      "Li et al., LycheeCluster: Efficient Long-Context Inference with Structure-Aware Chunking and Hierarchical KV "
      "Indexing",
      kOptions, make};
}

}  // namespace glimpse::policies
