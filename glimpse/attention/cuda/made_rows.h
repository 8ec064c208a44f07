// Pages for the rows that a pass puts together (kernels/cuda/made_rows.h), the same for all its layers.
#pragma once

#include "glimpse/attention/cuda/pass_tables.h"
#include "glimpse/kv/cache.h"

namespace glimpse::attention::cuda {

/// Owned by a runner; borrows cache and stream. One thread at a time.
class MadeRows {
 public:
  MadeRows(const kv::Cache& cache, kernels::cuda::Stream& stream) : cache_(cache), stream_(stream) {}

  /// Pages for what the pass's entries put together.
  void make_space(const PassTables& tables);
  /// True where some head of the pass has rows put together.
  bool any() const { return any_; }
  /// The view of a head's own pages.
  kernels::HeadView view(const PassEntry& entry, int head) const;
  /// How often the memory has moved.
  int moves() const { return moves_; }

 private:
  const kv::Cache& cache_;
  kernels::cuda::Stream& stream_;
  kernels::cuda::Memory rows_;                   ///< K of all rows, then V
  kernels::cuda::Array<kernels::PageId> pages_;  ///< 0, 1, 2 ...
  std::size_t plane_bytes_ = 0;
  bool any_ = false;
  int moves_ = 0;
};

}  // namespace glimpse::attention::cuda
