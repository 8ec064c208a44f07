// What the measurements in a profile say of a method that a user names: from which context on its tokens are faster
// than dense attention's, which is what --attn-min-ctx is unless it is given, and what it is not for. Pure functions;
// any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "glimpse/plan/profile.h"
#include "glimpse/policies/policy.h"

namespace glimpse::policies {

/// The least context, 0: any; kNeverFaster: none. Nothing where the times do not tell: of a method that was not
/// measured without options of its own, and of a budget other than a number of tokens or a share that was not measured.
inline constexpr int kNeverFaster = 1 << 30;
std::optional<int> faster_from(const plan::SpeedProfile& speed, std::string_view method, const plan::Budget& budget);

/// The same for a plan that these options made. Nothing where they have more than a budget, and where the plan reads
/// prompts sparsely, of which it would take a part.
std::optional<int> measured_minimum(const plan::SpeedProfile& speed, const PolicyOptions& options,
                                    const plan::Plan& plan);

/// plan::not_for() of a plan that these options made, at the very budget; empty also where that was not measured.
std::string measured_losses(const plan::Profile& profile, const PolicyOptions& options, const plan::Plan& plan);

}  // namespace glimpse::policies
