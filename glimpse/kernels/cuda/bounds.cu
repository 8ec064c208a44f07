// Bounds of pages: made from the keys of whole pages, and searched instead of them. Memory limits both: a page's keys
// are read once, and a search reads two rows a page for all query heads of the group.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/rows.cuh"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kMostPairs = kMaxHeadDim / 64;  ///< pairs of values of a row that a lane has
constexpr int kQueriesAtOnce = 4;

/// Of what two_of widened: exact.
__device__ inline std::uint32_t narrowed(float2 values, __nv_bfloat16) {
  return __float_as_uint(values.x) >> 16 | (__float_as_uint(values.y) & 0xffff0000U);
}
__device__ inline std::uint32_t narrowed(float2 values, __half) {
  const __half2 half = __floats2half2_rn(values.x, values.y);
  return *reinterpret_cast<const std::uint32_t*>(&half);
}

struct Bounds {
  float2 least, most;
  __device__ void join(float2 low, float2 high) {
    least = make_float2(fminf(least.x, low.x), fminf(least.y, low.y));
    most = make_float2(fmaxf(most.x, high.x), fmaxf(most.y, high.y));
  }
};

/// `parts` blocks for each range; of these pages a warp takes every so many, a lane of it pairs of neighbouring
/// dimensions.
template <class T>
__global__ void __launch_bounds__(kThreads) summarise_kernel(const __grid_constant__ SummariseArguments of) {
  begin_kernel(of.cache, false);
  const PageRange range = of.ranges[static_cast<int>(blockIdx.x) / of.parts];
  const HeadView& view = of.cache.views[static_cast<std::size_t>(range.sequence) * of.cache.kv_heads + range.head];
  const int pairs = of.cache.dim / 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(blockIdx.x) % of.parts * kWarps + static_cast<int>(threadIdx.x) / 32;
  for (int page = range.first + first; page < range.last; page += of.parts * kWarps) {
    const std::size_t number = view.pages[page];
    const auto* const keys = reinterpret_cast<const std::uint32_t*>(view.k_plane) + number * kPageTokens * pairs;
    auto* const to = reinterpret_cast<std::uint32_t*>(of.bounds) + number * 2 * pairs;
    for (int pair = lane; pair < pairs; pair += 32) {
      std::uint32_t bits[kPageTokens];
#pragma unroll
      for (int slot = 0; slot < kPageTokens; ++slot) bits[slot] = keys[slot * pairs + pair];
      Bounds bounds;
      bounds.least = bounds.most = two_of(bits[0], T());
#pragma unroll
      for (int slot = 1; slot < kPageTokens; ++slot) {
        const float2 key = two_of(bits[slot], T());
        bounds.join(key, key);
      }
      to[pair] = narrowed(bounds.least, T());
      to[pairs + pair] = narrowed(bounds.most, T());
    }
  }
}

/// The bounds of a block of pages: a lane's pairs of dimensions lane, lane + 32 ... (zeros behind the last).
template <class T>
__device__ void load_bounds(const SearchArguments& of, const PageId* pages, int count, Bounds (&to)[kMostPairs]) {
  const int pairs = of.cache.dim / 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int p = 0; p < count; ++p) {
    const auto* const from = reinterpret_cast<const std::uint32_t*>(of.bounds) + std::size_t{pages[p]} * 2 * pairs;
#pragma unroll
    for (int i = 0; i < kMostPairs; ++i) {
      const int pair = i * 32 + lane;
      if (pair >= pairs) {
        to[i].least = to[i].most = make_float2(0, 0);
        continue;
      }
      const float2 low = two_of(from[pair], T());
      const float2 high = two_of(from[pairs + pair], T());
      if (p == 0) {
        to[i].least = low;
        to[i].most = high;
      } else {
        to[i].join(low, high);
      }
    }
  }
}

__device__ inline float bound_of(float q, float least, float most) {
  return fmaxf(q * least, q * most);
}

/// `parts` blocks for each search; of its blocks of pages a warp takes every so many. The group's queries lie in shared
/// memory, [g, d].
template <class T>
__global__ void __launch_bounds__(kThreads) search_kernel(const __grid_constant__ SearchArguments of) {
  extern __shared__ float queries[];
  begin_kernel(of.cache, false);
  const Search search = of.searches[static_cast<int>(blockIdx.x) / of.parts];
  const int part = static_cast<int>(blockIdx.x) % of.parts;
  if (search.first + part * kWarps >= search.last) return;
  const int dim = of.cache.dim;
  const std::size_t head = (static_cast<std::size_t>(search.row) * of.cache.kv_heads + search.head) * of.group;
  for (int i = static_cast<int>(threadIdx.x); i < of.group * dim; i += kThreads) queries[i] = of.q[head * dim + i];
  __syncthreads();
  const HeadView& view = view_of(of.cache, search.row, search.head);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float* const scores = of.scores + head * of.stride;
  for (int block = search.first + part * kWarps + warp; block < search.last; block += of.parts * kWarps) {
    Bounds bounds[kMostPairs];
    load_bounds<T>(of, view.pages + static_cast<std::size_t>(block) * search.pages, search.pages, bounds);
    for (int first = 0; first < of.group; first += kQueriesAtOnce) {
      float sums[kQueriesAtOnce];
#pragma unroll
      for (int j = 0; j < kQueriesAtOnce; ++j) {
        sums[j] = 0;
        if (first + j >= of.group) continue;
        const float* const q = queries + (first + j) * dim;
#pragma unroll
        for (int i = 0; i < kMostPairs; ++i) {
          const int at = (i * 32 + lane) * 2;
          if (at >= dim) continue;
          sums[j] += bound_of(q[at], bounds[i].least.x, bounds[i].most.x);
          sums[j] += bound_of(q[at + 1], bounds[i].least.y, bounds[i].most.y);
        }
      }
#pragma unroll
      for (int j = 0; j < kQueriesAtOnce; ++j) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sums[j] += __shfl_xor_sync(~0U, sums[j], step);
        if (lane == 0 && first + j < of.group) scores[(first + j) * of.stride + block] = sums[j] * of.scale;
      }
    }
  }
}

template <class T>
void launch_search_of(const SearchArguments& of, const Limits& limits, cudaStream_t stream) {
  const int bytes = of.group * of.cache.dim * static_cast<int>(sizeof(float));
  allow_shared(search_kernel<T>, bytes);
  launch(search_kernel<T>, of, dim3(of.count * of.parts, kThreads), bytes, {limits, stream});
}

}  // namespace

void launch_summarise(const SummariseArguments& arguments, const Limits& limits, CUstream_st* stream) {
  const dim3 shape(arguments.count * arguments.parts, kThreads);
  auto* const kernel = arguments.cache.type == KvType::f16 ? summarise_kernel<__half> : summarise_kernel<__nv_bfloat16>;
  allow_shared(kernel, 0);
  launch(kernel, arguments, shape, 0, {limits, stream});
}

void launch_search(const SearchArguments& arguments, const Limits& limits, CUstream_st* stream) {
  if (arguments.cache.type == KvType::f16) return launch_search_of<__half>(arguments, limits, stream);
  launch_search_of<__nv_bfloat16>(arguments, limits, stream);
}

}  // namespace glimpse::kernels::cuda
