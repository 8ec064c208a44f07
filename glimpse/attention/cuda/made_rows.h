// Pages for the rows that a pass puts together (kernels/cuda/made_rows.h), the same for all its layers.
#pragma once

#include "glimpse/attention/cuda/own_pages.h"
#include "glimpse/attention/cuda/pass_tables.h"
#include "glimpse/kv/cache.h"

namespace glimpse::attention::cuda {

/// Owned by a runner; borrows the stream. One thread at a time.
class MadeRows {
 public:
  MadeRows(const kv::Cache& cache, kernels::cuda::Stream& stream) : pages_(cache.shape().format, stream) {}

  /// Pages for what the pass's entries put together.
  void make_space(const PassTables& tables) {
    any_ = tables.sizes().made_rows > 0;
    if (any_) pages_.reserve(tables.sizes().made_rows);
  }
  /// True where some head of the pass has rows put together.
  bool any() const { return any_; }
  /// The view of a head's own pages.
  kernels::HeadView view(const PassEntry& entry, int head) const {
    return pages_.view(entry.first_made_row + head * entry.made_of_head, static_cast<std::int32_t>(entry.made_of_head));
  }
  /// How often the memory has moved.
  int moves() const { return pages_.moves(); }

 private:
  OwnPages pages_;
  bool any_ = false;
};

}  // namespace glimpse::attention::cuda
