// RaaS: Hu, Huang, Zhu, et al., "RaaS: Reasoning-Aware Attention Sparsity for Efficient LLM Reasoning", 2025, arXiv
// 2502.11147 (the prompt stays; of the generated tokens those whose time stamp was renewed last).
#include "glimpse/policies/options.h"

namespace glimpse::policies {
namespace {

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("raas", {}, options);
  read.refuse_block("it keeps single tokens; leave the flag out");
  read.refuse_sink("the whole prompt stays; leave the flag out");
  read.refuse_local("a new token carries the newest stamp; leave the flag out");
  plan::Plan plan = plan::dense_plan(shape);
  plan.retentions.push_back(
      {.rule = plan::RetentionRule::stamps,
       .budget = read.counted_budget({plan::BudgetRule::tokens, 1024}, "keeps a number of tokens")});
  for (plan::Role& role : plan.roles) role.retention = 0;
  plan.feedback = plan::Feedback::probabilities;
  return plan;
}

}  // namespace

Policy raas_policy() {
  return {"raas",
          "keeps the prompt, and of the generated tokens those that mattered last (budget 1024 of them)",
          "Hu et al., RaaS: Reasoning-Aware Attention Sparsity for Efficient LLM Reasoning, 2025, arXiv 2502.11147",
          {},
          make};
}

}  // namespace glimpse::policies
