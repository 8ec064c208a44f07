// Sets that several parts make (attention::by_parts, Combine::union_sets): how many lists they are made from, and how
// long those are. Functions of their arguments; any thread.
#pragma once

#include <cstdint>

#include "glimpse/attention/program.h"

namespace glimpse::attention::cuda {

/// True when a set is put together from parts, or joins what an earlier layer took.
bool is_united(const SelectOp& select);

/// The lists of a union: one for each scoring query head.
struct UnionSize {
  std::int64_t wanted = 0;  ///< units of each
  int lists = 0;
};
UnionSize union_size(const SelectOp& select, std::int64_t tokens);

/// True when some layer joins what another one took.
bool joins_sets(const Program& program);

}  // namespace glimpse::attention::cuda
