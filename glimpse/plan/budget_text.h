// A plan's budgets in words, for reports. Pure; any thread.
#pragma once

#include <string>

#include "glimpse/plan/plan.h"

namespace glimpse::plan {

/// The budgets of a plan's selectors and of what its heads keep, "512"; several by commas, empty for none.
std::string budget_text(const Plan& plan);

}  // namespace glimpse::plan
