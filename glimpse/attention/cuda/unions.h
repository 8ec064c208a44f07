// Sets that several candidates make (attention::is_union, Combine::union_sets, HeadPooling::rank_merge): how many lists
// they are made from, and how long those are. Functions of their arguments; any thread.
#pragma once

#include <cstdint>

#include "glimpse/attention/program.h"

namespace glimpse::attention::cuda {

/// True when a set is put together from parts, joins what an earlier layer took, or is merged by rank.
bool is_united(const SelectOp& select);
/// The last of these.
bool merges_ranks(const SelectOp& select);

/// The lists of a union: one for each scoring query head.
struct UnionSize {
  std::int64_t wanted = 0;  ///< units of each
  int lists = 0;
};
/// UnionSize::lists, which no length changes.
int union_lists(const SelectOp& select);
UnionSize union_size(const SelectOp& select, std::int64_t tokens);

}  // namespace glimpse::attention::cuda
