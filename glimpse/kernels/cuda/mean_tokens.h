// The mean key and value that stand for what a window lost (RazorAttention, section 3.3), queued on a stream behind
// AttendOp: sums over the lost rows, and one more partial result for each query head.
//
// All memory is the device's, owned by the caller until the stream has passed the call. One thread at a time. Errors:
// as kernels/cuda/operations.h.
#pragma once

#include <cstdint>

#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::kernels::cuda {

/// Of one KV head of a row. Positions [first, end) are lost, of which the sums have [first, held).
struct MeanToken {
  std::int32_t row = 0, head = 0;
  std::int32_t first = 0, held = 0;
  std::int32_t take = 0;  ///< the sums take in [held, take); those behind count in this pass alone
  std::int32_t end = 0;
  std::int32_t gap = 0;    ///< positions below are their slots,
  std::int32_t gone = 0;   ///< later ones lie so many slots before
  double* sums = nullptr;  ///< [2, d] of keys and values
};

/// out = the softmax over what was read and the mean token, whose score counts as many times as rows were lost.
struct MeanTokensOp {
  KvTable<Place::device> cache;
  RowTable<Place::device> rows;
  Pointer<const float, Place::device> q;  ///< [R, H, d] after RoPE
  int group = 1;
  float scale = 1;
  Pointer<const MeanToken, Place::device> tokens;  ///< [count]
  int count = 0;
  Pointer<const float, Place::device> lse;  ///< [R, H] of what was read
  Pointer<float, Place::device> out;        ///< [R, H, d]
};
void add_mean_tokens(Stream& stream, const MeanTokensOp& op);

}  // namespace glimpse::kernels::cuda
