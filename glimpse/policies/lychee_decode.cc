// LycheeDecode: Lin, Li, Chen, Shi, Chen, Hu, Zhang, "LycheeDecode: Accelerating Long-Context LLM Inference via
// Hybrid-Head Sparse Decoding", sections 3.1 and 3.2 (roles per head, sets handed on from layer to layer).
#include <array>

#include "glimpse/policies/heads.h"
#include "glimpse/policies/layers.h"
#include "glimpse/policies/selectors.h"

namespace glimpse::policies {
namespace {

constexpr double kShare = 0.125;  // 32 of 256 KV heads
constexpr std::array<std::string_view, 2> kFirstLayer{"counted", "extra"};

const std::array<OptionHelp, 3> kOptions{{
    retrieval_option("how many KV heads are retrieval heads, a number or a share; auto: the profile's heads above 0.5, "
                     "else 12.5 %"),
    {"first-layer", "counted|extra", "counted",
     "whether the heads of layer 0, all retrieval heads, are in that number or beside it"},
    {"selector", kSelectorValues, "exact",
     "what retrieval heads choose by: exact scores, or another method's index over the keys", true},
}};

// The group's queries are averaged before softmax; a mass needs probabilities, which are averaged after it.
plan::Selector make_selector(const OptionReader& read) {
  plan::Selector selector = chosen_selector(read, "selector", "kv-head", {plan::BudgetRule::tokens, 4096});
  const bool counted =
      selector.budget.rule == plan::BudgetRule::tokens || selector.budget.rule == plan::BudgetRule::ratio;
  if (counted && selector.terms[0].source == plan::Source::probability) {
    selector.terms[0] = {plan::Source::dot, plan::GroupPooling::mean_query};
  }
  return selector;
}

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("lychee-decode", kOptions, options);
  plan::Plan plan = plan::dense_plan(shape);
  plan.selectors.push_back(make_selector(read));
  const bool counted = read.choice("first-layer", kFirstLayer) == "counted";
  std::vector<char> retrieval =
      retrieval_kv_heads(read, shape, {kShare, /*first_layer=*/1, counted ? shape.kv_heads : 0});
  for (int head = 0; head < shape.kv_heads; ++head) {
    int source = 0;
    for (int layer = 0; layer < shape.layers; ++layer) {
      const auto place = static_cast<std::size_t>(layer * shape.kv_heads + head);
      if (layer == 0 || retrieval[place] != 0) {
        plan.role(layer, head) = {.kind = plan::RoleKind::select, .selector = 0};
        source = layer;
      } else {
        plan.role(layer, head) = {.kind = plan::RoleKind::reuse, .reads = {source, head}};
      }
    }
  }
  tidy(plan);
  return plan;
}

}  // namespace

Policy lychee_decode_policy() {
  return {"lychee-decode",
          "few retrieval heads read everything and choose for the same head of the layers after them (budget 4096)",
          "Lin et al., LycheeDecode: Accelerating Long-Context LLM Inference via Hybrid-Head Sparse Decoding",
          {kOptions.begin(), kOptions.end()},
          make,
          {"roles", "retrieval"}};
}

}  // namespace glimpse::policies
