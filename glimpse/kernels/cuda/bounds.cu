// Bounds of pages: made from the keys of whole pages, and searched instead of them. Memory limits both: a page's keys
// are read once, and a search reads two rows a page for all query heads of the group.
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/share.cuh"
#include "glimpse/kernels/cuda/stored.cuh"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kQueriesAtOnce = 4;

/// The least or the largest values of a page as its bounds have them: exact where the cache has 16 bits; of bytes the
/// next bf16 that is not above, or not below.
template <class T>
__device__ inline std::uint32_t narrowed(float2 values, bool up) {
  if constexpr (__is_same(T, __half)) {
    const __half2 half = __floats2half2_rn(values.x, values.y);
    return *reinterpret_cast<const std::uint32_t*>(&half);
  } else {
    const auto half = [up](float value) {
      const std::uint32_t bits = __float_as_uint(value);
      const bool away = kScaled<T> && (bits & 0xffffU) != 0 && isfinite(value) && (bits >> 31 != 0) != up;
      return (bits >> 16) + (away ? 1U : 0U);
    };
    return half(values.x) | half(values.y) << 16;
  }
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
  begin_kernel(of.cache, true);
  const PageRange range = of.ranges[static_cast<int>(blockIdx.x) / of.parts];
  const HeadView& view = of.cache.views[static_cast<std::size_t>(range.sequence) * of.cache.kv_heads + range.head];
  const int pairs = of.cache.dim / 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(blockIdx.x) % of.parts * kWarps + static_cast<int>(threadIdx.x) / 32;
  for (int page = range.first + first; page < range.last; page += of.parts * kWarps) {
    const std::size_t number = view.pages[page];
    auto* const to = reinterpret_cast<std::uint32_t*>(of.bounds) + number * 2 * pairs;
    for (int pair = lane; pair < pairs; pair += 32) {
      float2 keys[kPageTokens];
#pragma unroll
      for (int slot = 0; slot < kPageTokens; ++slot) {
        keys[slot] = StoredRow<T>(view.k_plane, number * kPageTokens + slot, of.cache.dim).both(pair);
      }
      Bounds bounds;
      bounds.least = bounds.most = keys[0];
#pragma unroll
      for (int slot = 1; slot < kPageTokens; ++slot) bounds.join(keys[slot], keys[slot]);
      to[pair] = narrowed<T>(bounds.least, false);
      to[pairs + pair] = narrowed<T>(bounds.most, true);
    }
  }
}

constexpr int kPageLanes = 8;     ///< that share the bounds of a block of pages, 16 bytes each at a time
constexpr int kBlocksAtOnce = 2;  ///< of pages, for each of them
static_assert(kSearchStep == kWarps * 32 / kPageLanes * kBlocksAtOnce);

__device__ inline std::uint32_t least_of(std::uint32_t a, std::uint32_t b, __nv_bfloat16) {
  const __nv_bfloat162 least =
      __hmin2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&least);
}
__device__ inline std::uint32_t least_of(std::uint32_t a, std::uint32_t b, __half) {
  const __half2 least = __hmin2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&least);
}
__device__ inline std::uint32_t most_of(std::uint32_t a, std::uint32_t b, __nv_bfloat16) {
  const __nv_bfloat162 most =
      __hmax2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&most);
}
__device__ inline std::uint32_t most_of(std::uint32_t a, std::uint32_t b, __half) {
  const __half2 most = __hmax2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&most);
}

/// Eight neighbouring dimensions of a block's bounds, pairs in a word.
struct EightBounds {
  std::uint32_t least[4], most[4];

  __device__ void load(const uint4* row, int pieces) {
    const uint4 low = __ldg(row), high = __ldg(row + pieces);
    least[0] = low.x, least[1] = low.y, least[2] = low.z, least[3] = low.w;
    most[0] = high.x, most[1] = high.y, most[2] = high.z, most[3] = high.w;
  }
  template <class T>
  __device__ void join(const EightBounds& other) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      least[i] = least_of(least[i], other.least[i], T());
      most[i] = most_of(most[i], other.most[i], T());
    }
  }
  /// What they allow eight values of a query.
  template <class T>
  __device__ float bound(const float4 (&q)[2]) const {
    const float values[8] = {q[0].x, q[0].y, q[0].z, q[0].w, q[1].x, q[1].y, q[1].z, q[1].w};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 low = two_of(least[i], T()), high = two_of(most[i], T());
      sum += values[2 * i] * (values[2 * i] > 0 ? high.x : low.x);
      sum += values[2 * i + 1] * (values[2 * i + 1] > 0 ? high.y : low.y);
    }
    return sum;
  }
};

/// Values to shared memory. The block synchronises.
__device__ void load_queries(const float* from, int count, float* to) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) to[i] = from[i];
  __syncthreads();
}

/// A block's first bounds come to the second-level cache while the launch before ends: page tables are complete, and
/// what that launch makes of the bounds is read behind it.
__device__ void ask_for_bounds(const SearchArguments& of, const Search& search, const HeadView& view, int first) {
  const std::size_t bytes = static_cast<std::size_t>(of.cache.dim) * 4, each = (bytes + 127) / 128;  // lines of a page
  const int pages = min(search.last - first, kSearchStep) * search.pages;
  for (int i = static_cast<int>(threadIdx.x); i < pages * static_cast<int>(each); i += kThreads) {
    const int page = i / static_cast<int>(each), line = i % static_cast<int>(each);
    const std::size_t number = view.pages[static_cast<std::size_t>(first) * search.pages + page];
    asm volatile("prefetch.global.L2 [%0];" ::"l"(of.bounds + number * bytes + line * 128));
  }
}

/// `parts` blocks for each search. Eight lanes have the bounds of two of its blocks of pages at a time. The group's
/// queries lie in shared memory, [g, d].
template <class T>
__global__ void __launch_bounds__(kThreads, kSearchBlocks) search_kernel(const __grid_constant__ SearchArguments of) {
  extern __shared__ float4 search_queries[];
  let_next_begin();
  const Search search = of.searches[static_cast<int>(blockIdx.x) / of.parts];
  const int own_first = search.first + static_cast<int>(blockIdx.x) % of.parts * kSearchStep;
  const std::size_t head = (static_cast<std::size_t>(search.row) * of.cache.kv_heads + search.head) * of.group;
  const int dim = of.cache.dim, pieces = dim / 8;
  const HeadView view = view_of(of.cache, search.row, search.head);
  const auto* const all = reinterpret_cast<const uint4*>(of.bounds);
  ask_for_bounds(of, search, view, own_first);
  wait_for_launch_before();
  if (own_first >= search.last) return;
  load_queries(of.q + head * dim, of.group * dim, reinterpret_cast<float*>(search_queries));
  const int lane = static_cast<int>(threadIdx.x) % kPageLanes;
  float* const scores = of.scores + head * of.stride;
  const int step = of.parts * kSearchStep;
  const int own = static_cast<int>(threadIdx.x) % 32 / kPageLanes;  // of the warp's neighbouring blocks
  constexpr int kOfWarp = 32 / kPageLanes;
  const int begin = own_first + static_cast<int>(threadIdx.x) / 32 * kOfWarp;
  for (int first = begin; first < search.last; first += step) {
    const PageId* pages[kBlocksAtOnce];
    int block[kBlocksAtOnce];
#pragma unroll
    for (int b = 0; b < kBlocksAtOnce; ++b) {
      block[b] = first + own + b * (kThreads / kPageLanes);
      pages[b] = view.pages + static_cast<std::size_t>(min(block[b], search.last - 1)) * search.pages;
    }
    for (int query = 0; query < of.group; query += kQueriesAtOnce) {
      float sums[kBlocksAtOnce][kQueriesAtOnce] = {};
#pragma unroll 2
      for (int piece = lane; piece < pieces; piece += kPageLanes) {
        EightBounds bounds[kBlocksAtOnce];
#pragma unroll
        for (int b = 0; b < kBlocksAtOnce; ++b) {
          bounds[b].load(all + std::size_t{pages[b][0]} * 2 * pieces + piece, pieces);
        }
        for (int page = 1; page < search.pages; ++page) {
#pragma unroll
          for (int b = 0; b < kBlocksAtOnce; ++b) {
            EightBounds other;
            other.load(all + std::size_t{pages[b][page]} * 2 * pieces + piece, pieces);
            bounds[b].join<T>(other);
          }
        }
#pragma unroll
        for (int j = 0; j < kQueriesAtOnce; ++j) {
          const float4* const q = search_queries + (min(query + j, of.group - 1) * pieces + piece) * 2;
          const float4 values[2] = {q[0], q[1]};
#pragma unroll
          for (int b = 0; b < kBlocksAtOnce; ++b) sums[b][j] += bounds[b].bound<T>(values);
        }
      }
#pragma unroll
      for (int b = 0; b < kBlocksAtOnce; ++b) {
#pragma unroll
        for (int j = 0; j < kQueriesAtOnce; ++j) {
#pragma unroll
          for (int distance = kPageLanes / 2; distance > 0; distance /= 2) {
            sums[b][j] += __shfl_xor_sync(~0U, sums[b][j], distance);
          }
          if (lane == j && query + j < of.group && block[b] < search.last) {
            scores[(query + j) * of.stride + block[b]] = sums[b][j] * of.scale;
          }
        }
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
  auto* const kernel = for_stored(arguments.cache.type, [](auto type) { return &summarise_kernel<decltype(type)>; });
  allow_shared(kernel, 0);
  launch(kernel, arguments, shape, 0, {limits, stream});
}

void launch_search(const SearchArguments& arguments, const Limits& limits, CUstream_st* stream) {
  if (arguments.cache.type == KvType::f16) return launch_search_of<__half>(arguments, limits, stream);
  launch_search_of<__nv_bfloat16>(arguments, limits, stream);
}

}  // namespace glimpse::kernels::cuda
