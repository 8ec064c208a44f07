// Where a device's sets come from: what a SelectOp alone says of it, which no length changes. Facts, tables and indices
// ask it, and it asks none of them. Functions of their arguments, which own nothing; any thread.
#pragma once

#include <cstdint>

#include "glimpse/attention/program.h"

namespace glimpse::attention::cuda {

/// How a set is made.
enum class SetSource : std::uint8_t {
  ranks,   ///< of lists that are merged by rank
  united,  ///< of what several lists hold
  tree,    ///< by a search of a head's tree
  units,   ///< by a search of a head's units
  bounds,  ///< by a search of bounds that hang on pages
  scores,  ///< from scores of keys
};

SetSource source_of(const SelectOp& select);

/// True when a set is made by a search of a head's tree.
bool searches_tree(const SelectOp& select);
/// True when a set is made by a search of units that the host's index holds.
bool searches_units(const SelectOp& select);
/// Likewise where units are chunks, which differ in length.
bool searches_chunks(const SelectOp& select);
/// True where a search is of bounds that hang on pages: the least and the largest of their keys, for blocks of whole
/// pages, which stay on the device, and scores that are pooled as such.
bool bounds_hang_on_pages(const SelectOp& select);
/// True where a head of the plan searches the bounds of its pages.
bool searches_pages(const Program& program, int layer, int head);

}  // namespace glimpse::attention::cuda
