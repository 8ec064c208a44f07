// Rows of K and V of a pass's own, in pages that lie one behind the other: what is put together for attention, or
// widened for a prompt. They are the same memory for all layers.
#pragma once

#include <cstdint>

#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::attention::cuda {

/// Owned by a runner; borrows the stream. One thread at a time.
class OwnPages {
 public:
  OwnPages(kernels::KvFormat format, kernels::cuda::Stream& stream) : format_(format), stream_(stream) {}

  const kernels::KvFormat& format() const { return format_; }
  /// Bytes that room for so many rows takes beside what there is; 0: there is enough.
  std::size_t wanted(std::int64_t rows) const;
  /// Room for so many rows; what was there is lost where it moves.
  void reserve(std::int64_t rows);
  /// A head whose first row is `row`, a multiple of kPageTokens.
  kernels::HeadView view(std::int64_t row, std::int32_t slots) const;
  /// How often the memory has moved.
  int moves() const { return moves_; }

 private:
  kernels::KvFormat format_;
  kernels::cuda::Stream& stream_;
  kernels::cuda::Memory memory_;                 ///< K of all pages, then V
  kernels::cuda::Array<kernels::PageId> pages_;  ///< 0, 1, 2 ...
  std::size_t count_ = 0;                        ///< pages of a plane
  int moves_ = 0;
};

}  // namespace glimpse::attention::cuda
