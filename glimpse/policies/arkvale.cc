// ArkVale: Chen, Wang, Liu, Lin, Luo, Wang, "ArkVale: Efficient Generative LLM Inference with Recallable Key-Value
// Eviction", NeurIPS 2024 (pages of 32 with a bounding digest; pages wait in host memory and are recalled).
#include "glimpse/policies/layers.h"
#include "glimpse/policies/selectors.h"

namespace glimpse::policies {
namespace {

const std::vector<OptionHelp> kOptions = with_selector_options({kResident}, "arkvale");

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("arkvale", kOptions, options);
  const plan::Selector selector = index_selector(read, "arkvale", {plan::BudgetRule::tokens, 1024});
  plan::Plan plan = own_set_plan(shape, selector, kFirstSparse);
  keep_in_tier(plan, read, selector.budget);
  tidy(plan);
  return plan;
}

}  // namespace

Policy arkvale_policy() {
  return {"arkvale",
          "every layer from 2 on reads its own best pages of 32 tokens (budget 1024); cold pages wait in host memory",
          "Chen et al., ArkVale: Efficient Generative LLM Inference with Recallable Key-Value Eviction, NeurIPS 2024",
          kOptions, make};
}

}  // namespace glimpse::policies
