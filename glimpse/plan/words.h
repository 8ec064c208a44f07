// The words of the vocabulary, one for each enumerator, in order: JSON, `explain` and error messages share them.
// Constants; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "glimpse/base/error.h"
#include "glimpse/plan/plan.h"

namespace glimpse::plan {

template <class Enum>
inline constexpr std::array<std::string_view, 0> kWords{};
template <>
inline constexpr std::array<std::string_view, 4> kWords<BudgetRule>{"tokens", "ratio", "mass", "threshold"};
template <>
inline constexpr std::array<std::string_view, 8> kWords<Source>{
    "dot", "probability", "heat", "page-bounds", "chunk-tree", "token-clusters", "landmarks", "gate"};
template <>
inline constexpr std::array<std::string_view, 6> kWords<GroupPooling>{
    "none", "mean-query", "mean-score", "max-score", "mean-probability", "max-probability"};
template <>
inline constexpr std::array<std::string_view, 4> kWords<HeadPooling>{"none", "mean", "max", "rank-merge"};
template <>
inline constexpr std::array<std::string_view, 3> kWords<SetPer>{"query-head", "kv-head", "layer"};
template <>
inline constexpr std::array<std::string_view, 3> kWords<Digest>{"min-max", "sphere", "mean-deviation"};
template <>
inline constexpr std::array<std::string_view, 4> kWords<RoleKind>{"dense", "select", "reuse", "stream"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<Combine>{"none", "union-sets"};
template <>
inline constexpr std::array<std::string_view, 6> kWords<RetentionRule>{
    "all", "window", "accumulated", "last-probability", "stamps", "host-tier"};
template <>
inline constexpr std::array<std::string_view, 3> kWords<Observe>{"none", "last-rows", "all"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<Feedback>{"none", "probabilities"};

template <class Enum>
std::string_view word(Enum value) {
  const auto index = static_cast<std::size_t>(value);
  check(index < kWords<Enum>.size(), "enumerator without a word");
  return kWords<Enum>[index];
}

}  // namespace glimpse::plan
