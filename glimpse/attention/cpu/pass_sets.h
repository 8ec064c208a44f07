// The sets that the decoding rows of a pass choose, as the batched operations know sets: a flat table with a capacity
// (kernels/tables.h). They are the pass's, not the sequence's: a step makes anew what it reads. Sets are numbered as
// SelectOp::first_set says, from an entry's first one on. Distinct sets may be written by distinct threads.
// Inside attention/cpu only; see runner.h for threads.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "glimpse/attention/sets.h"
#include "glimpse/base/buffer.h"
#include "glimpse/kernels/tables.h"

namespace glimpse::attention {

class PassSets {
 public:
  /// Before a pass: `sets` lists of up to `capacity` positions. Memory that no list reaches is not touched.
  void open(int sets, std::int64_t capacity);
  /// `list`: ascending positions.
  void publish(int set, std::span<const std::int32_t> list);
  /// When all lists of a slot are published, or made by an operation that had the table: they are everything where each
  /// holds all tokens; else each has its list.
  void close(int first, int lists, std::int64_t tokens);

  kernels::SetTable<kernels::Place::host> table();
  /// The same for all lists of a slot.
  bool everything(int set) const { return counts_[static_cast<std::size_t>(set)] == kernels::kEverything; }
  /// Of a set that is not everything.
  std::span<const std::int32_t> list(int set) const;
  /// Of a union: what terms with scores of their own chose, which later layers join to theirs; best first.
  std::vector<ScoredUnit>& chosen(int set) { return chosen_[static_cast<std::size_t>(set)]; }
  /// So many lists from `set` on, for records. `tokens`: of the row that published them.
  PublishedSet published(int set, int lists, std::int64_t tokens) const;

 private:
  std::int32_t* row(int set) { return const_cast<std::int32_t*>(std::as_const(*this).row(set)); }
  const std::int32_t* row(int set) const {
    return reinterpret_cast<const std::int32_t*>(slots_.data()) +
           static_cast<std::size_t>(set) * static_cast<std::size_t>(capacity_);
  }

  HostBuffer slots_;  ///< [sets, capacity]
  std::int32_t capacity_ = 0;
  std::vector<std::int32_t> counts_;             ///< [sets]
  std::vector<std::vector<ScoredUnit>> chosen_;  ///< [sets], which keep their memory
};

}  // namespace glimpse::attention
