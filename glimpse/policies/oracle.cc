// The upper bound of all selection: exact top-k of every query head in every layer, layer 0 dense (Kascade, arXiv
// 2512.16391, section 3.1). It reads all keys to find the best, so it saves nothing and exists to compare with.
#include <array>

#include "glimpse/policies/layers.h"
#include "glimpse/policies/selectors.h"

namespace glimpse::policies {
namespace {

constexpr std::array<std::string_view, 3> kSets{"query-head", "kv-head", "layer"};
const std::array<OptionHelp, 1> kOptions{{
    {"set", "query-head|kv-head|layer", "query-head",
     "for whom a set is made: each query head, the mean probability of a KV head's group, or of the whole layer"},
}};

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("oracle", kOptions, options);
  plan::Plan plan = own_set_plan(
      shape, exact_selector(read, read.choice("set", kSets), {plan::BudgetRule::tokens, 1024}), /*first_layer=*/1);
  tidy(plan);
  return plan;
}

}  // namespace

Policy oracle_policy() {
  return {"oracle",
          "exact top tokens of every query head in every layer but 0 (budget 1024): the upper bound, scores all keys",
          "Deshmukh et al., Kascade: A Practical Sparse Attention Method for Long-Context LLM Inference, 2025, arXiv "
          "2512.16391, section 3.1",
          {kOptions.begin(), kOptions.end()},
          make};
}

}  // namespace glimpse::policies
