// ShadowKV: Sun, Chang, Bao, Zheng, Zheng, Liu, Dong, Chi, Chen, "ShadowKV: KV Cache in Shadows for High-Throughput
// Long-Context LLM Inference", ICML 2025, arXiv 2410.21465, section 4 (low-rank prompt keys, landmarks of chunks of 8).
#include <algorithm>

#include "glimpse/policies/layers.h"
#include "glimpse/policies/selectors.h"

namespace glimpse::policies {
namespace {

constexpr int kRank = 160;

const std::vector<OptionHelp> kOptions = with_selector_options(
    {{"rank", "N|auto", "auto",
      "singular vectors that the prompt's keys are read from; 0: the keys themselves; auto: 160, at most KV heads x "
      "head dimension"},
     kResident},
    "shadowkv");

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("shadowkv", kOptions, options);
  plan::dense_plan(shape);  // refuses an empty shape before a rank is asked of it
  plan::Selector selector = index_selector(read, "shadowkv", {plan::BudgetRule::tokens, 1024});
  const int most = shape.kv_heads * shape.head_dim;
  selector.terms[0].index.key_rank = read.integer("rank", 0, most, kAuto).value_or(std::min(kRank, most));
  plan::Plan plan = own_set_plan(shape, selector, kFirstSparse);
  keep_in_tier(plan, read, selector.budget);
  tidy(plan);
  return plan;
}

}  // namespace

Policy shadowkv_policy() {
  return {"shadowkv",
          "every layer from 2 on reads its own best chunks of 8 tokens by their mean key (budget 1024), prompt keys of "
          "rank 160",
          "Sun et al., ShadowKV: KV Cache in Shadows for High-Throughput Long-Context LLM Inference, ICML 2025, arXiv "
          "2410.21465",
          kOptions, make};
}

}  // namespace glimpse::policies
