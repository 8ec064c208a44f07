// A trace, a profile or a scoreboard as one page of HTML that needs nothing else: no network, no file beside it. The
// pages' own source is in picture/, and is built into the program. Any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "glimpse/cli/trace.h"
#include "glimpse/plan/profile.h"

namespace glimpse::cli {

std::string picture_page(const Trace& trace);
std::string profile_page(const plan::Profile& profile);
/// [layer, KV head] share of the context that the budgets are, 1 at most.
std::vector<double> shares_of(const plan::BudgetProfile& budgets);
/// Of the text of scoreboard.json.
std::string scoreboard_page(std::string_view json);

}  // namespace glimpse::cli
