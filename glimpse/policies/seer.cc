// SeerAttention-R: Gao, Guo, Cao, et al., "SeerAttention-R: Sparse Attention Adaptation for Long Reasoning", 2025,
// arXiv 2506.08889, section 2 (a gate for each KV head scores blocks of 64 tokens). The gate is trained; its weights
// come from a file, and without them there is nothing to select by.
#include <fmt/format.h>

#include <array>

#include "glimpse/base/error.h"
#include "glimpse/policies/layers.h"
#include "glimpse/policies/options.h"

namespace glimpse::policies {
namespace {

constexpr int kBlock = 64;
constexpr double kBudget = 4096;  // the authors' seerattn_token_budget

const std::array<OptionHelp, 2> kOptions{{
    {"gates", "FILE", "none", "the gates' weights, a GGUF that scripts/convert-seer-gates.py makes (docs/gates.md)",
     /*selector=*/false, /*needed=*/true},
    {"first-layer", "LAYER", "0", "layers before it are dense"},
}};

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("seer", kOptions, options);
  const std::string_view file = read.text("gates").value_or("");
  if (file.empty()) {
    throw UserError(
        "policy 'seer' needs the gate weights that were trained for the model: give --attn-opt gates=FILE, or choose a "
        "policy that needs none, such as quest");
  }
  plan::Selector selector;
  selector.block = read.block(kBlock);
  selector.sink = read.sink(0);
  selector.local = read.local(0);
  selector.budget = read.budget({plan::BudgetRule::tokens, kBudget});
  plan::Term term{plan::Source::gate, plan::GroupPooling::none};
  term.index.gates = file;
  selector.terms.push_back(std::move(term));
  selector.budget = with_room(selector.budget, selector);
  const int first = read.layer("first-layer", 0, shape.layers - 1, {}).value_or(0);
  return own_set_plan(shape, selector, first);
}

}  // namespace

Policy seer_policy() {
  return {"seer",
          "every layer reads its own best blocks of 64 tokens, chosen by a gate trained for the model (budget 4096)",
          "Gao et al., SeerAttention-R: Sparse Attention Adaptation for Long Reasoning, 2025, arXiv 2506.08889",
          {kOptions.begin(), kOptions.end()},
          make};
}

}  // namespace glimpse::policies
