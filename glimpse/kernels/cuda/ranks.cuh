// Order among few things, by one block: floats as whole numbers, sums over the threads before, sorting.
#pragma once

#include <cstdint>

namespace glimpse::kernels::cuda {

/// Orders as floats do; 0 is what is never chosen: NaN and -inf. Both zeros are equal.
__device__ inline std::uint32_t order_of(float value) {
  if (!(value > -INFINITY)) return 0;
  const std::uint32_t bits = __float_as_uint(value == 0 ? 0.0F : value);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// The sum of `own` over the threads before this one; `all`: over all of them. The block synchronises.
template <int kThreads>
__device__ int block_sum_before(int own, int* all = nullptr) {
  static_assert(kThreads % 32 == 0 && kThreads <= 1024);
  __shared__ int warps[kThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int sum = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0U, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();  // nobody reads those of a call before any more
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  int total = 0;
  sum -= own;
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) sum += warps[w];
    total += warps[w];
  }
  if (all != nullptr) *all = total;
  return sum;
}

/// Sorts `count` values in shared memory, the largest first; a power of two, or none. The block synchronises.
template <int kThreads>
__device__ void sort_down(std::uint64_t* values, int count) {
  for (int size = 2; size <= count; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      for (int i = static_cast<int>(threadIdx.x); i < count / 2; i += kThreads) {
        const int low = i / step * 2 * step + i % step, high = low + step;
        const std::uint64_t a = values[low], b = values[high];
        if ((a < b) == ((low & size) == 0)) values[low] = b, values[high] = a;
      }
      __syncthreads();
    }
  }
}

}  // namespace glimpse::kernels::cuda
