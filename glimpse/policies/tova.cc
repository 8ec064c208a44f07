// TOVA: Oren, Hassid, Yarden, Adi, Schwartz, "Transformers are Multi-State RNNs", EMNLP 2024, arXiv 2401.06104,
// section 3.2 (the token of least attention in the last step is dropped, the same for all heads of a layer).
#include "glimpse/policies/options.h"

namespace glimpse::policies {
namespace {

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("tova", {}, options);
  read.refuse_block("it keeps single tokens; leave the flag out");
  read.refuse_sink("it keeps no token for its position; leave the flag out");
  read.refuse_local("it keeps no token for its position; leave the flag out");
  plan::Plan plan = plan::dense_plan(shape);
  plan.retentions.push_back(
      {.rule = plan::RetentionRule::last_probability,
       .budget = read.counted_budget({plan::BudgetRule::tokens, 1024}, "keeps a number of tokens"),
       .per = plan::SetPer::layer});
  for (plan::Role& role : plan.roles) role.retention = 0;
  plan.feedback = plan::Feedback::probabilities;
  plan.prefill = {.observe = plan::Observe::last_rows, .observe_rows = 1};
  return plan;
}

}  // namespace

Policy tova_policy() {
  return {"tova",
          "forgets the token of least probability in the last step, one set a layer (budget 1024)",
          "Oren et al., Transformers are Multi-State RNNs, EMNLP 2024, arXiv 2401.06104",
          {},
          make};
}

}  // namespace glimpse::policies
