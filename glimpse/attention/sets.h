// The published sets of one sequence: what selecting heads hand on to the heads that inherit. Owned by the sequence;
// written by one thread per slot, read after the layer's phase has ended.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/plan/plan.h"

namespace glimpse::attention {

/// A token or block with the score that chose it.
struct ScoredUnit {
  std::int32_t unit = 0;
  float score = 0;
};

/// One list, or one for each query head of the group (SetPer::query_head).
struct PublishedSet {
  std::vector<std::vector<std::int32_t>> lists;  ///< ascending token positions
  bool everything = false;                       ///< the budget covered the context: no list, all tokens
  /// Combine::union_sets: what terms with scores of their own chose, which later layers join to theirs; best first.
  std::vector<ScoredUnit> chosen;
};

class PublishedSets {
 public:
  PublishedSets() = default;
  explicit PublishedSets(const plan::Plan& plan);

  PublishedSet& at(plan::SlotId slot) { return sets_[index(slot)]; }
  const PublishedSet& at(plan::SlotId slot) const { return sets_[index(slot)]; }

 private:
  std::size_t index(plan::SlotId slot) const {
    return static_cast<std::size_t>(slot.layer) * static_cast<std::size_t>(kv_heads_) +
           static_cast<std::size_t>(slot.head);
  }
  int kv_heads_ = 0;
  std::vector<PublishedSet> sets_;  ///< [layer, kv_head]
};

}  // namespace glimpse::attention
