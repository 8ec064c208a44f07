#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/cluster.cuh"
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/order.cuh"
#include "glimpse/kernels/cuda/ranks.cuh"
#include "glimpse/kernels/cuda/readings.h"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kThreads = 1024;  // of a block, which has a row or a share of one
constexpr int kDigits = 256;
constexpr int kCopies = 16;  // of the counters: threads of a warp seldom meet at one

__device__ bool is_finite(float x) {
  return (__float_as_uint(x) & 0x7f800000U) != 0x7f800000U;
}

/// A row's largest value without counting. Its key, then the lower place: larger is better.
struct Best {
  unsigned long long key = 0;
  bool finite = true;

  __device__ void take(unsigned long long other) { key = other > key ? other : key; }
  __device__ void take(float value, int place) {
    finite &= is_finite(value);
    take(static_cast<unsigned long long>(order_of(value)) << 32 | (~0U - static_cast<unsigned>(place)));
  }
};

/// Each of the blocks of a row, a cluster or one, takes a share of it; the first one says what they found.
template <int kBlocks>
__device__ void find_largest(const LargestOp& of) {
  begin_launch();
  __shared__ unsigned long long warps[kThreads / 32];
  __shared__ unsigned long long found;  // 0: this block has seen NaN or infinity
  const int block = static_cast<int>(blockIdx.x) % kBlocks, row_number = static_cast<int>(blockIdx.x) / kBlocks;
  const float* const row = of.values.raw() + static_cast<std::size_t>(row_number) * of.width;
  const int thread = block * kThreads + static_cast<int>(threadIdx.x);
  Best best;
  if (of.width % 4 == 0) {
    const auto* const fours = reinterpret_cast<const float4*>(row);
    for (int i = thread; i < of.width / 4; i += kBlocks * kThreads) {
      const float4 x = fours[i];
      best.take(x.x, 4 * i);
      best.take(x.y, 4 * i + 1);
      best.take(x.z, 4 * i + 2);
      best.take(x.w, 4 * i + 3);
    }
  } else {
    for (int i = thread; i < of.width; i += kBlocks * kThreads) best.take(row[i], i);
  }
  for (int step = 16; step > 0; step /= 2) best.take(__shfl_xor_sync(~0U, best.key, step));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best.key;
  const bool finite = __syncthreads_and(best.finite) != 0;
  if (threadIdx.x == 0) {
    for (const unsigned long long other : warps) best.take(other);
    // A share without any value has none that is not finite; its key loses to every other.
    found = finite ? (best.key > 0 ? best.key : 1) : 0;
  }
  Blocks<kBlocks>::synchronise();
  if (block == 0 && threadIdx.x == 0) {
    bool all = true;
    for (int other = 0; other < kBlocks; ++other) {
      const unsigned long long key = *Blocks<kBlocks>::of_block(&found, other);
      all &= key != 0;
      best.take(key);
    }
    const auto at = static_cast<std::int32_t>(~0U - static_cast<std::uint32_t>(best.key));
    of.out.raw()[row_number] = all ? Standing{at, row[at]} : Standing{};
  }
  if constexpr (kBlocks > 1) Blocks<kBlocks>::synchronise();  // the others' memory is read until here
}

__global__ void __launch_bounds__(kThreads) largest_one_kernel(const __grid_constant__ LargestOp of) {
  find_largest<1>(of);
}

__global__ void GLIMPSE_CLUSTER __launch_bounds__(kThreads)
    largest_one_cluster_kernel(const __grid_constant__ LargestOp of) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  find_largest<kClusterBlocks>(of);
#endif
}

/// Rounds of 256 counters, each over a narrower range of keys, find the key of the last value taken.
__global__ void __launch_bounds__(kThreads) largest_kernel(const __grid_constant__ LargestOp of) {
  begin_launch();
  __shared__ std::uint32_t counters[kDigits * kCopies];
  __shared__ std::uint32_t digit, left, equal;
  __shared__ int taken, warp_equal[kThreads / 32];
  const float* const row = of.values.raw() + static_cast<std::size_t>(blockIdx.x) * of.width;
  Standing* const out = of.out.raw() + static_cast<std::size_t>(blockIdx.x) * of.count;
  const int thread = static_cast<int>(threadIdx.x);
  std::uint32_t cut = 0;  // the digits that are known
  bool finite = true;
  if (thread == 0) left = static_cast<std::uint32_t>(of.count);
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = thread; i < kDigits * kCopies; i += kThreads) counters[i] = 0;
    __syncthreads();
    const std::uint32_t known = shift == 24 ? 0 : ~0U << (shift + 8);
    for (int i = thread; i < of.width; i += kThreads) {
      finite &= is_finite(row[i]);
      const std::uint32_t key = order_of(row[i]);
      if ((key & known) == cut) atomicAdd(&counters[(key >> shift & (kDigits - 1)) * kCopies + thread % kCopies], 1U);
    }
    if (__syncthreads_and(finite) == 0) {
      for (int i = thread; i < of.count; i += kThreads) out[i] = Standing{};
      return;
    }
    if (thread < kDigits) {
      std::uint32_t sum = 0;
      for (int i = 0; i < kCopies; ++i) sum += counters[thread * kCopies + i];
      counters[thread * kCopies] = sum;
    }
    __syncthreads();
    if (thread == 0) {
      std::uint32_t still = left;
      int d = kDigits - 1;
      for (; d > 0 && counters[d * kCopies] < still; --d) still -= counters[d * kCopies];
      digit = static_cast<std::uint32_t>(d);
      left = still;
      equal = counters[d * kCopies];
    }
    __syncthreads();
    cut |= digit << shift;
  }
  // All of a larger key, and of those that equal the cut the first ones.
  if (thread == 0) taken = 0;
  __syncthreads();
  const bool all_equal = equal == left;
  for (int i = thread; i < of.width; i += kThreads) {
    const std::uint32_t key = order_of(row[i]);
    if (key > cut || (key == cut && all_equal)) out[atomicAdd(&taken, 1)] = {i, row[i]};
  }
  if (all_equal) return;
  int first = of.count - static_cast<int>(left);  // the same in all threads
  for (int base = 0; first < of.count; base += kThreads) {
    const int i = base + thread;
    const bool is = i < of.width && order_of(row[i]) == cut;
    const unsigned mine = __ballot_sync(~0U, is);
    if (thread % 32 == 0) warp_equal[thread / 32] = __popc(mine);
    __syncthreads();
    int at = first + __popc(mine & ((1U << thread % 32) - 1));
    int all = 0;
    for (int warp = 0; warp < kThreads / 32; ++warp) {
      if (warp < thread / 32) at += warp_equal[warp];
      all += warp_equal[warp];
    }
    if (is && at < of.count) out[at] = {i, row[i]};
    first += all;
    __syncthreads();
  }
}

/// The sum over a block's threads, the same in each, in a fixed order.
__device__ double block_sum(double own, double* warps) {
  for (int step = 16; step > 0; step /= 2) own += __shfl_xor_sync(~0U, own, step);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
  __syncthreads();
  double sum = 0;
  for (int warp = 0; warp < static_cast<int>(blockDim.x) / 32; ++warp) sum += warps[warp];
  __syncthreads();
  return sum;
}

__global__ void change_kernel(const __grid_constant__ ChangeOp of) {
  begin_launch();
  __shared__ double warps[32];
  const std::size_t at = static_cast<std::size_t>(blockIdx.x) * of.width;
  double xx = 0, xd = 0, dd = 0;
  for (int i = static_cast<int>(threadIdx.x); i < of.width; i += static_cast<int>(blockDim.x)) {
    const double x = of.x.raw()[at + i], d = of.delta.raw()[at + i];
    xx += x * x;
    xd += x * d;
    dd += d * d;
  }
  xx = block_sum(xx, warps);
  xd = block_sum(xd, warps);
  dd = block_sum(dd, warps);
  const double lengths = sqrt(xx * fmax(xx + 2 * xd + dd, 0.0));
  if (threadIdx.x == 0) of.out.raw()[blockIdx.x] = lengths > 0 ? static_cast<float>(1 - (xx + xd) / lengths) : 0.0F;
}

constexpr int kReadThreads = 512;
constexpr int kEach = 8;

__global__ void __launch_bounds__(kReadThreads) read_kernel(const uint4* from, std::size_t count, unsigned* sum) {
  unsigned bits = 0;
  constexpr std::size_t kBlock = static_cast<std::size_t>(kReadThreads) * kEach;
  for (std::size_t at = blockIdx.x * kBlock; at + kBlock <= count; at += gridDim.x * kBlock) {
    uint4 x[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) x[i] = __ldcs(from + at + i * kReadThreads + threadIdx.x);
#pragma unroll
    for (int i = 0; i < kEach; ++i) bits ^= x[i].x ^ x[i].y ^ x[i].z ^ x[i].w;
  }
  if (bits == 0x12345678U) *sum = bits;
}

template <class Op>
void launch_rows(Stream& stream, void (*kernel)(Op), const Op& op, int threads, int blocks = 1) {
  if (op.rows == 0) return;
  Limits limits;
  limits.clusters = stream.device().capability >= 90;
  launch(kernel, op, dim3(static_cast<unsigned>(op.rows * blocks), static_cast<unsigned>(threads)), 0,
         {limits, static_cast<cudaStream_t>(stream.raw())});
}

}  // namespace

void largest(Stream& stream, const LargestOp& op) {
  check(op.count >= 1 && op.count <= kMostLargest && op.count <= op.width, "as many values as there are, 128 at most");
  if (op.count > 1) return launch_rows(stream, largest_kernel, op, kThreads);
  if (stream.device().capability < 90) return launch_rows(stream, largest_one_kernel, op, kThreads);
  launch_rows(stream, largest_one_cluster_kernel, op, kThreads, kClusterBlocks);
}

void change(Stream& stream, const ChangeOp& op) {
  launch_rows(stream, change_kernel, op, 256);
}

void read_all(Stream& stream, const std::byte* from, std::size_t bytes, unsigned* sum) {
  read_kernel<<<stream.device().processors * 4, kReadThreads, 0, static_cast<cudaStream_t>(stream.raw())>>>(
      reinterpret_cast<const uint4*>(from), bytes / 16, sum);
}

}  // namespace glimpse::kernels::cuda
