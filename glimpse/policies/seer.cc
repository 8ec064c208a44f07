// SeerAttention-R: Gao, Guo, Cao, et al., "SeerAttention-R: Sparse Attention Adaptation for Long Reasoning", 2025,
// arXiv 2506.08889, section 2 (a gate for each KV head scores blocks of 64 tokens). The gate is trained; its weights
// come from a file, and without them there is nothing to select by.
#include "glimpse/policies/layers.h"
#include "glimpse/policies/selectors.h"

namespace glimpse::policies {
namespace {

constexpr double kBudget = 4096;  // the authors' seerattn_token_budget

const std::vector<OptionHelp> kOptions =
    with_selector_options({{"first-layer", "LAYER", "0", "layers before it are dense"}}, "seer");

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("seer", kOptions, options);
  const plan::Selector selector = index_selector(read, "seer", {plan::BudgetRule::tokens, kBudget});
  const int first = read.layer("first-layer", 0, shape.layers - 1, {}).value_or(0);
  return own_set_plan(shape, selector, first);
}

}  // namespace

Policy seer_policy() {
  return {"seer",
          "every layer reads its own best blocks of 64 tokens, chosen by a gate trained for the model (budget 4096)",
          "Gao et al., SeerAttention-R: Sparse Attention Adaptation for Long Reasoning, 2025, arXiv 2506.08889",
          kOptions, make};
}

}  // namespace glimpse::policies
