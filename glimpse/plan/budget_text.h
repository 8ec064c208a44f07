// A plan's budgets in words, for reports. Pure; any thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/plan/plan.h"

namespace glimpse::plan {

/// The budgets of a plan's selectors and of what its heads keep, "512"; several by commas, of many the first and the
/// last by size with " to " between; empty for none.
std::string budget_text(const Plan& plan);

/// Words for budgets that differ, each written by `text`, as above; `between` stands between several.
std::string budgets_text(std::vector<Budget> budgets, std::string_view between,
                         const std::function<std::string(const Budget&)>& text);

}  // namespace glimpse::plan
