// H2O: Zhang, Sheng, Zhou, et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
// Models", NeurIPS 2023, arXiv 2306.14048, section 4 (recent tokens and those of the largest accumulated attention).
#include <array>

#include "glimpse/policies/layers.h"
#include "glimpse/policies/options.h"

namespace glimpse::policies {
namespace {

const std::array<OptionHelp, 1> kOptions{{
    {"recent", "SHARE", "0.5", "share of the budget that the last tokens take; heavy hitters have the rest"},
}};

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("h2o", kOptions, options);
  read.refuse_block("it keeps single tokens; leave the flag out");
  read.refuse_sink("heavy hitters hold the first tokens by themselves; leave the flag out");
  read.refuse_local("the recent tokens are a share of the budget; set --attn-opt recent=SHARE");
  plan::Plan plan = plan::dense_plan(shape);
  plan.retentions.push_back(
      {.rule = plan::RetentionRule::accumulated,
       .budget = read.counted_budget({plan::BudgetRule::tokens, 1024}, "keeps a number of tokens"),
       .recent_share = read.number("recent", 0, 1, plan::Retention{}.recent_share)});
  for (plan::Role& role : plan.roles) role.retention = 0;
  plan.feedback = plan::Feedback::probabilities;
  plan.prefill.observe = plan::Observe::all;
  return plan;
}

}  // namespace

Policy h2o_policy() {
  return {"h2o",
          "keeps the last tokens and those of the largest accumulated probability (budget 1024); forgets the rest",
          "Zhang et al., H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models, NeurIPS "
          "2023, arXiv 2306.14048",
          {kOptions.begin(), kOptions.end()},
          make};
}

}  // namespace glimpse::policies
