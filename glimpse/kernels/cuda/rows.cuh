// Single rows of K against queries in f32, by one warp: where few rows are read, and their order matters more than
// tensor cores.
#pragma once

#include "glimpse/kernels/cuda/share.cuh"
#include "glimpse/kernels/cuda/stored.cuh"

namespace glimpse::kernels::cuda {

/// Values to shared memory. The block synchronises.
template <int kThreads>
__device__ void load_queries(const float* from, int count, float* to) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) to[i] = from[i];
  __syncthreads();
}

/// A row of the cache, each lane pairs of neighbouring ones: lane, lane + 32 ... of them (zeros behind the last).
template <class T>
struct KeyRow {
  static constexpr int kPairs = kMaxHeadDim / 64;
  float2 pairs[kPairs];
  int dim = 0;

  __device__ void load(const HeadView& view, int slot, int of) {
    dim = of;
    const StoredRow<T> row(view.k_plane, row_number(view, slot), dim);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int pair = i * 32 + static_cast<int>(threadIdx.x) % 32;
      pairs[i] = pair < dim / 2 ? row.both(pair) : make_float2(0, 0);
    }
  }
  /// With a query of as many floats in shared memory; all lanes have it.
  __device__ float dot(const float* query) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int pair = i * 32 + static_cast<int>(threadIdx.x) % 32;
      if (pair >= dim / 2) continue;
      sum += query[2 * pair] * pairs[i].x + query[2 * pair + 1] * pairs[i].y;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
    return sum;
  }
};

}  // namespace glimpse::kernels::cuda
