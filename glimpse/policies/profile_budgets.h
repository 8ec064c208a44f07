// The budgets of a profile in a method's plan: each set gets what the KV heads that read it need. Functions on values;
// any thread.
#pragma once

#include "glimpse/plan/profile.h"
#include "glimpse/policies/policy.h"

namespace glimpse::policies {

/// The plan of a policy with the budgets of `options.profile`, a profile of this shape. A set holds the most that one
/// of the heads that read it needs: its own head where that attends to it, those that reuse it, and all heads of the
/// layer where they share one set; in whole blocks, and at least what the policy itself asks of a small share of the
/// context. At other lengths than the profile's a set holds the same share, and never fewer tokens. Throws UserError
/// without budgets in the profile, and for a policy whose heads do not select within one budget.
plan::Plan plan_with_budgets(const Policy& policy, const plan::ModelShape& shape, const PolicyOptions& options);

}  // namespace glimpse::policies
