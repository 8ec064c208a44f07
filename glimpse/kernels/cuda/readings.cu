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

/// Larger for larger values, and of equal ones for lower places.
__device__ unsigned long long key_of(float value, int place) {
  return static_cast<unsigned long long>(order_of(value)) << 32 | (~0U - static_cast<unsigned>(place));
}
__device__ int place_of(unsigned long long key) {
  return static_cast<int>(~0U - static_cast<std::uint32_t>(key));
}

/// A row's largest value without counting.
struct Best {
  unsigned long long key = 0;
  bool finite = true;

  __device__ void take(unsigned long long other) { key = other > key ? other : key; }
  __device__ void take(float value, int place) {
    finite &= is_finite(value);
    take(key_of(value, place));
  }
};

/// What a block of a row's, a cluster or one, has of it: its values and their places, by all of its threads.
template <int kBlocks, class See>
__device__ void see_share(const float* row, int width, int block, const See& see) {
  const int thread = block * kThreads + static_cast<int>(threadIdx.x);
  if (width % 4 == 0) {
    const auto* const fours = reinterpret_cast<const float4*>(row);
    for (int i = thread; i < width / 4; i += kBlocks * kThreads) {
      const float4 x = fours[i];
      see(x.x, 4 * i);
      see(x.y, 4 * i + 1);
      see(x.z, 4 * i + 2);
      see(x.w, 4 * i + 3);
    }
  } else {
    for (int i = thread; i < width; i += kBlocks * kThreads) see(row[i], i);
  }
}

/// Each of the blocks of a row takes a share of it; the first one says what they found.
template <int kBlocks>
__device__ void find_largest(const LargestOp& of) {
  begin_launch();
  __shared__ unsigned long long warps[kThreads / 32];
  __shared__ unsigned long long found;  // 0: this block has seen NaN or infinity
  const int block = static_cast<int>(blockIdx.x) % kBlocks, row_number = static_cast<int>(blockIdx.x) / kBlocks;
  const float* const row = of.values.raw() + static_cast<std::size_t>(row_number) * of.width;
  Best best;
  see_share<kBlocks>(row, of.width, block, [&](float value, int place) { best.take(value, place); });
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
    const int at = place_of(best.key);
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

/// The work of one block: rounds of 256 counters, each over a narrower range of keys, find the key of the last value
/// taken.
__device__ void count_largest(const LargestOp& of, int row_number) {
  __shared__ std::uint32_t counters[kDigits * kCopies];
  __shared__ std::uint32_t digit, left, equal;
  __shared__ int taken, warp_equal[kThreads / 32];
  const float* const row = of.values.raw() + static_cast<std::size_t>(row_number) * of.width;
  Standing* const out = of.out.raw() + static_cast<std::size_t>(row_number) * of.count;
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

__global__ void __launch_bounds__(kThreads) largest_kernel(const __grid_constant__ LargestOp of) {
  begin_launch();
  count_largest(of, static_cast<int>(blockIdx.x));
}

/// A cluster's: of the largest keys of its 256 warps the count-th is a bound that `count` values reach, and few more;
/// the first block puts those in order. Where many values are equal there may be too many; then it counts.
__global__ void GLIMPSE_CLUSTER __launch_bounds__(kThreads)
    largest_cluster_kernel(const __grid_constant__ LargestOp of) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using Cluster = Blocks<kClusterBlocks>;
  constexpr int kWarps = kThreads / 32, kCandidates = 1024;
  begin_launch();
  __shared__ std::uint64_t own[kWarps], all[kClusterBlocks * kWarps], candidates[kCandidates];
  __shared__ int found;
  __shared__ bool finite;
  const int thread = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x) % kClusterBlocks;
  const int row_number = static_cast<int>(blockIdx.x) / kClusterBlocks;
  const float* const row = of.values.raw() + static_cast<std::size_t>(row_number) * of.width;
  Standing* const out = of.out.raw() + static_cast<std::size_t>(row_number) * of.count;
  Best best;
  see_share<kClusterBlocks>(row, of.width, block, [&](float value, int place) { best.take(value, place); });
  for (int step = 16; step > 0; step /= 2) best.take(__shfl_xor_sync(~0U, best.key, step));
  if (thread % 32 == 0) own[thread / 32] = best.key;
  const bool is_finite_here = __syncthreads_and(best.finite) != 0;
  if (thread == 0) finite = is_finite_here, found = 0;
  Cluster::synchronise();
  bool is = true;
  for (int other = 0; other < kClusterBlocks; ++other) is &= *Cluster::of_block(&finite, other);
  if (thread < kClusterBlocks * kWarps) all[thread] = Cluster::of_block(own, thread / kWarps)[thread % kWarps];
  __syncthreads();
  sort_down<kThreads>(all, kClusterBlocks * kWarps);
  const std::uint64_t bound = all[of.count - 1];  // 0 where fewer warps have values: all of them reach it
  if (is) {
    auto* const number = const_cast<int*>(Cluster::of_block(&found, 0));
    auto* const keys = const_cast<std::uint64_t*>(Cluster::of_block(candidates, 0));
    see_share<kClusterBlocks>(row, of.width, block, [&](float value, int place) {
      const std::uint64_t key = key_of(value, place);
      if (key < bound) return;
      const int at = atomicAdd(number, 1);
      if (at < kCandidates) keys[at] = key;
    });
  }
  Cluster::synchronise();
  if (block > 0) return;
  if (!is) {
    for (int i = thread; i < of.count; i += kThreads) out[i] = Standing{};
    return;
  }
  if (found > kCandidates) return count_largest(of, row_number);
  int size = 1;
  while (size < found) size *= 2;
  for (int i = found + thread; i < size; i += kThreads) candidates[i] = 0;
  __syncthreads();
  sort_down<kThreads>(candidates, size);
  for (int i = thread; i < of.count; i += kThreads) {
    const int at = place_of(candidates[i]);
    out[i] = {at, row[at]};
  }
#endif
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

/// What order_of() made of a value that is chosen.
__device__ float value_of(std::uint32_t order) {
  return __uint_as_float((order & 0x80000000U) != 0 ? order & 0x7fffffffU : ~order);
}

/// A row's values are put in order by all threads; one of them draws.
__global__ void __launch_bounds__(kMostLargest) draw_kernel(const __grid_constant__ DrawOp of) {
  begin_launch();
  __shared__ std::uint64_t keys[kMostLargest];
  __shared__ float parts[2][kMostLargest];  // exponentials as they are, and of values over the temperature
  const int i = static_cast<int>(threadIdx.x);
  const Standing* const row = of.largest.raw() + static_cast<std::size_t>(blockIdx.x) * of.count;
  const bool is = i < of.count;
  const Standing own = is ? row[i] : Standing{};
  keys[i] = is ? key_of(own.value, own.at) : 0;
  if (__syncthreads_or(is && own.at < 0) != 0) {
    if (i == 0) of.out.raw()[blockIdx.x] = {};
    return;
  }
  sort_down<kMostLargest>(keys, kMostLargest);
  __syncthreads();
  const auto value = [&](int at) { return value_of(static_cast<std::uint32_t>(keys[at] >> 32)); };
  const Draw draw = of.draws.raw()[blockIdx.x];
  if (is) {
    parts[0][i] = expf(value(i) - value(0));
    parts[1][i] = draw.temperature > 0 ? expf(value(i) / draw.temperature - value(0) / draw.temperature) : 0;
  }
  __syncthreads();
  if (i != 0) return;
  int left = draw.top_k > 0 ? min(draw.top_k, of.count) : of.count;
  if (draw.top_p < 1) {
    float all = 0, sum = 0;
    for (int at = 0; at < left; ++at) all += parts[0][at];
    for (int at = 0; at < left; ++at) {
      sum += parts[0][at] / all;
      if (sum >= draw.top_p) left = at + 1;
    }
  }
  if (draw.min_p > 0) {
    const float least = value(0) + logf(draw.min_p);
    for (int at = 1; at < left; ++at) {
      if (value(at) < least) left = at;
    }
  }
  int taken = 0;
  if (draw.temperature > 0) {
    double all = 0, sum = 0;
    for (int at = 0; at < left; ++at) all += static_cast<double>(parts[1][at]);
    while (taken < left - 1) {
      sum += static_cast<double>(parts[1][taken]);
      if (sum >= all * draw.uniform) break;
      ++taken;
    }
  }
  of.out.raw()[blockIdx.x] = {place_of(keys[taken]), value(taken)};
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
  launch(kernel, op, dim3(static_cast<unsigned>(op.rows * blocks), static_cast<unsigned>(threads)), 0,
         {launch_limits(stream), static_cast<cudaStream_t>(stream.raw())});
}

}  // namespace

void largest(Stream& stream, const LargestOp& op) {
  check(op.count >= 1 && op.count <= kMostLargest && op.count <= op.width, "as many values as there are, 128 at most");
  if (stream.device().capability < 90) {
    return launch_rows(stream, op.count > 1 ? largest_kernel : largest_one_kernel, op, kThreads);
  }
  launch_rows(stream, op.count > 1 ? largest_cluster_kernel : largest_one_cluster_kernel, op, kThreads, kClusterBlocks);
}

void draw(Stream& stream, const DrawOp& op) {
  check(op.count >= 1 && op.count <= kMostLargest, "1 to 128 values to draw from");
  launch_rows(stream, draw_kernel, op, kMostLargest);
}

void change(Stream& stream, const ChangeOp& op) {
  launch_rows(stream, change_kernel, op, 256);
}

void read_all(Stream& stream, const std::byte* from, std::size_t bytes, unsigned* sum) {
  read_kernel<<<stream.device().processors * 4, kReadThreads, 0, static_cast<cudaStream_t>(stream.raw())>>>(
      reinterpret_cast<const uint4*>(from), bytes / 16, sum);
}

}  // namespace glimpse::kernels::cuda
