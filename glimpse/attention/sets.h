// What selecting heads hand on to the heads that inherit, as records say it (records.h), and what unions of sets
// choose. Plain values.
#pragma once

#include <cstdint>
#include <vector>

namespace glimpse::attention {

/// A token or block with the score that chose it.
struct ScoredUnit {
  std::int32_t unit = 0;
  float score = 0;
};

/// One list, or one for each query head of the group (SetPer::query_head).
struct PublishedSet {
  std::vector<std::vector<std::int32_t>> lists;  ///< ascending token positions
  bool everything = false;                       ///< each list has all tokens
};

}  // namespace glimpse::attention
