// What the sources of this folder share: limits and the checks that do not need a whole plan. Any thread.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/plan/plan.h"

namespace glimpse::plan {

// Far above any model or context; they keep a hostile file from asking for memory.
inline constexpr int kMaxLayers = 1024;
inline constexpr int kMaxHeads = 1024;
inline constexpr int kMaxHeadDim = 4096;
inline constexpr int kMaxTokens = 1 << 30;
inline constexpr int kMaxTile = 65536;
inline constexpr int kLeastChunk = 8;  ///< tokens; chunks end from there on (LycheeCluster)
inline constexpr double kMaxDeviationWeight = 1000;
inline constexpr std::size_t kMaxSelectors = 4096;
inline constexpr std::size_t kMaxTerms = 16;
inline constexpr std::size_t kMaxRows = 64;    ///< of a table by budget
inline constexpr std::size_t kMaxKept = 4096;  ///< rows of what methods kept, in a profile
inline constexpr std::size_t kMaxNameLength = 1024;
inline constexpr std::size_t kMaxPathLength = 4096;

/// Throws UserError: "plan: WHERE: TEXT".
template <class... Args>
[[noreturn]] void refuse(std::string_view where, fmt::format_string<Args...> text, Args&&... args) {
  throw UserError(fmt::format("plan: {}: {}", where, fmt::format(text, std::forward<Args>(args)...)));
}

inline void in_range(std::string_view where, std::string_view what, std::int64_t value, std::int64_t low,
                     std::int64_t high) {
  if (value < low || value > high) refuse(where, "{} = {} is outside {} to {}", what, value, low, high);
}

/// What is wrong with the budget and how to mend it; empty when nothing is.
std::string budget_problem(const Budget& budget);

/// True for the rules that need the softmax probabilities (mass, threshold).
inline bool needs_probabilities(BudgetRule rule) {
  return rule != BudgetRule::tokens && rule != BudgetRule::ratio;
}

/// Throws UserError when the shape cannot be a model's.
void validate_shape(const ModelShape& shape);

/// The checks of one entry by itself; `validate` checks how roles use it.
void validate_selector(const Plan& plan, std::size_t index);
void validate_retention(const Plan& plan, std::size_t index);

}  // namespace glimpse::plan
