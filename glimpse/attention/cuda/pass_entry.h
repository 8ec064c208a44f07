// One sequence in a device's pass: its rows, and where what they make is numbered from. A plain value that PassTables
// makes and owns; it borrows what it points to. Functions of their arguments; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/attention/cuda/program_facts.h"
#include "glimpse/kernels/cuda/trees.h"

namespace glimpse::attention::cuda {

/// The tree, or the clusters, of a head on the device, in the sequence's memory.
struct TreeCopy {
  kernels::cuda::Tree tree;
  std::size_t room = 0;  ///< chunks
};

/// What a pass's rows of a sequence search, [layers, kv_heads].
struct SearchedTrees {
  std::vector<TreeCopy> copies;
  std::vector<std::int32_t> covered;  ///< tokens that each tree covers
};

/// A sequence's rows in a pass.
struct PassEntry {
  SequenceRows rows;
  std::int64_t tokens = 0;  ///< after the pass's rows
  bool is_end = true;       ///< its sequence has no more tokens, as it has where rows are corrected
  bool dense = true;        ///< reads everything, and selects nothing
  int first_set = 0;        ///< its sets are numbered from here
  const ProgramFacts* facts = nullptr;
  int first_heat = -1;  ///< its rows of heat and of what flows back into it are numbered from here; -1: none
  int heats = 0;        ///< so many: one, or one for each layer
  int first_kept = -1;  ///< [layers] what its layers' unions took is numbered from here; -1: nobody asks
  bool waits = false;   ///< pages of its sets may wait in the tier
  const SearchedTrees* trees = nullptr;  ///< where it searches some
  int first_made = -1;  ///< lists of rows that are put together (MadeSet) are numbered from here; -1: none
  int made_lists = 0;   ///< so many for each KV head
  std::int64_t first_made_row = 0, made_of_head = 0;  ///< where they lie: [kv_heads, made_of_head]
  std::int64_t observed = 0;  ///< of its prompt's rows, those from this one on flow back into the heat

  int heat_of(int layer) const { return first_heat + (heats > 1 ? layer : 0); }
};

/// Lengths in steps of an eighth of a power of two: launches are sized by it, and a graph of them holds for a while.
std::int64_t length_step(std::int64_t tokens);
/// The first of the sets that an entry's slot has.
int first_set(const PassEntry& entry, plan::SlotId slot);

}  // namespace glimpse::attention::cuda
