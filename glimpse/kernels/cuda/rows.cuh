// Single rows of K against queries in f32, by one warp: where few rows are read, and their order matters more than
// tensor cores.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "glimpse/kernels/cuda/share.cuh"

namespace glimpse::kernels::cuda {

/// Both halves of a word as floats.
__device__ inline float2 two_of(std::uint32_t bits, __nv_bfloat16) {
  return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000U));
}
__device__ inline float2 two_of(std::uint32_t bits, __half) {
  return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}

/// Values to shared memory. The block synchronises.
template <int kThreads>
__device__ void load_queries(const float* from, int count, float* to) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) to[i] = from[i];
  __syncthreads();
}

/// A row of 16-bit values, each lane pairs of neighbouring ones: lane, lane + 32 ... of them (zeros behind the last).
template <class T>
struct KeyRow {
  static constexpr int kPairs = kMaxHeadDim / 64;
  float2 pairs[kPairs];
  int dim = 0;

  __device__ void load(const std::uint32_t* row, int of) {
    dim = of;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int pair = i * 32 + static_cast<int>(threadIdx.x) % 32;
      pairs[i] = pair < dim / 2 ? two_of(row[pair], T()) : make_float2(0, 0);
    }
  }
  __device__ void load(const HeadView& view, int slot, int of) {
    const std::size_t row = static_cast<std::size_t>(view.pages[slot >> kPageShift]) * kPageTokens +
                            static_cast<std::size_t>(slot & (kPageTokens - 1));
    load(reinterpret_cast<const std::uint32_t*>(view.k_plane) + row * (of / 2), of);
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
