// What products divide by that are with a norm: see FewRowsOp.
#pragma once

#include "glimpse/kernels/cuda/few_rows.h"

namespace glimpse::kernels::cuda {

/// 1 / root mean square of each row, in shared memory. `warps` warps of a block call it, each as another `warp` of
/// them, the last for the first rows. Each takes kAtOnce rows together: one wait for memory is as long as one for many.
template <int kAtOnce>
__device__ inline void row_scales(const FewRowsOp& op, int warp, int warps, float* scales) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int parts = op.width / kPackedRows;
  for (int first = warps - 1 - warp; first < op.rows; first += warps * kAtOnce) {
    const float* const squares = op.squares.raw() + first * parts;
    float sums[kAtOnce] = {};
#pragma unroll 8
    for (int i = lane; i < parts; i += 32) {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (first + k * warps < op.rows) sums[k] += squares[k * warps * parts + i];
      }
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sums[k] += __shfl_xor_sync(~0U, sums[k], step);
      const int row = first + k * warps;
      if (lane == 0 && row < op.rows) scales[row] = rsqrtf(sums[k] / static_cast<float>(op.width) + op.epsilon);
    }
  }
}

}  // namespace glimpse::kernels::cuda
