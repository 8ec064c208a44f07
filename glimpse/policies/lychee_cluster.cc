// LycheeCluster: Li, Liu, Lin, Hu, Zhang, "LycheeCluster: Efficient Long-Context Inference with Structure-Aware
// Chunking and Hierarchical KV Indexing", sections 3.1 to 3.4 and appendix A.
#include <array>

#include "glimpse/policies/layers.h"
#include "glimpse/policies/selectors.h"

namespace glimpse::policies {
namespace {

constexpr std::array<std::string_view, 3> kScores{"tree", "minmax", "meanstd"};
constexpr std::array<std::string_view, 2> kChunks{"boundaries", "fixed"};
constexpr std::array<std::string_view, 2> kPooling{"mean", "max"};

const std::array<OptionHelp, 6> kOptions{{
    {"chunks", "boundaries|fixed", "boundaries",
     "chunks of 8 to 16 tokens cut where the text does, or of 16 tokens each"},
    {"pooling", "mean|max", "mean", "a chunk's representative: the mean of its keys, or their elementwise max"},
    {"whole-clusters", "on|off", "off", "take the last cluster whole, past the budget, as the paper does"},
    {"chunks-per-cluster", "1..8", "2", "chunks of a fine cluster, on average"},
    {"score", "tree|minmax|meanstd", "tree",
     "tree: clusters by their bounds; else no tree, and every chunk by the min and max, or the mean and standard "
     "deviation, of its keys"},
    {"deviation-weight", "NUMBER", "1", "weight of the standard deviation, with score=meanstd"},
}};

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("lychee-cluster", kOptions, options);
  read.refuse_block("its units are chunks of the text; leave the flag out");
  plan::Selector selector = index_selector(read, "lychee-cluster", {plan::BudgetRule::tokens, 1024});
  plan::IndexOptions& index = selector.terms[0].index;
  index.fixed_chunks = read.choice("chunks", kChunks) == "fixed";
  index.max_pooling = read.choice("pooling", kPooling) == "max";
  index.whole_clusters = read.on("whole-clusters", false);
  index.chunks_per_cluster = read.integer("chunks-per-cluster", 1, 8, {}).value_or(index.chunks_per_cluster);
  const std::string_view score = read.choice("score", kScores);
  index.chunk_bounds = score != "tree";
  if (score == "meanstd") index.digest = plan::Digest::mean_deviation;
  index.deviation_weight = read.number("deviation-weight", 0, 1000, index.deviation_weight);
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
      {kOptions.begin(), kOptions.end()},
      make};
}

}  // namespace glimpse::policies
