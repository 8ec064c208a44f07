// Dense attention of a prompt's rows. A block takes a tile of 64 (token, query head) rows of one KV head, so that K and
// V are read once for the group, and goes over the keys that its last row sees, 64 at a time: the next keys come by
// cp.async while tensor cores work on these. A warp has 16 rows for itself: its scores never leave its registers.
// Queries and weights are 16 bits wide, sums are f32.
#pragma once

#include "glimpse/kernels/cuda/feed.cuh"
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/share.cuh"

namespace glimpse::kernels::cuda {

inline constexpr int kPrefillRows = 64;
inline constexpr int kPrefillKeys = 64;
inline constexpr int kPrefillThreads = 128;

template <int kDim>
struct PrefillShape {
  using Layout = TileLayout<kDim>;
  static constexpr int kStages = kDim > 128 ? 1 : 2;
  static constexpr int kQueryBytes = Layout::bytes(kPrefillRows);
  static constexpr int kPlaneBytes = Layout::bytes(kPrefillKeys);
  static constexpr int kBytes = kQueryBytes + 2 * kStages * kPlaneBytes;
};

/// Asks for K and V of 64 slots from `first` on, of those below `seen`; what lies behind is zeros.
template <int kDim>
__device__ inline void ask_keys(const HeadView& view, int first, int seen, std::uint32_t to) {
  using Shape = PrefillShape<kDim>;
  constexpr int kPieces = kDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kPrefillKeys * kPieces; i += kPrefillThreads) {
    const int row = i / kPieces;
    const int piece = i % kPieces;
    const int slot = first + row;
    const bool there = slot < seen && (view.positions == nullptr || view.positions[slot] >= 0);
    const std::size_t at =
        there ? (static_cast<std::size_t>(view.pages[slot >> kPageShift]) * kPageTokens + (slot & (kPageTokens - 1))) *
                        (kDim * 2) +
                    piece * 16
              : 0;
    const std::uint32_t place = to + Shape::Layout::offset(row, piece);
    copy_16_bytes<false>(place, view.k_plane + at, there);
    copy_16_bytes<false>(place + Shape::kPlaneBytes, view.v_plane + at, there);
  }
  close_copies();
}

template <class T, int kDim>
__global__ void __launch_bounds__(kPrefillThreads) prefill_kernel(const __grid_constant__ PrefillArguments of) {
  using Shape = PrefillShape<kDim>;
  using Layout = typename Shape::Layout;
  extern __shared__ uint4 memory[];
  const std::uint32_t base = shared_address(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int tiles = (of.prompt.rows * of.group + kPrefillRows - 1) / kPrefillRows;
  const int head = static_cast<int>(blockIdx.x) % of.cache.kv_heads;
  const int tile = tiles - 1 - static_cast<int>(blockIdx.x) / of.cache.kv_heads;  // those that see most first
  const int first = tile * kPrefillRows;
  const int count = min(kPrefillRows, of.prompt.rows * of.group - first);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  const HeadView view = of.cache.views[static_cast<std::size_t>(of.prompt.sequence) * of.cache.kv_heads + head];
  const int before = view.slots - of.prompt.behind + 1;  // that the first row sees
  const int least = before + first / of.group;           // that the first row of the tile sees
  const int seen = before + (first + count - 1) / of.group;
  const std::size_t heads = static_cast<std::size_t>(of.cache.kv_heads) * of.group;
  const auto row_at = [&](int row) {  // of [R, H, d]
    const int token = of.prompt.row + (first + row) / of.group;
    return (static_cast<std::size_t>(token) * heads + static_cast<std::size_t>(head) * of.group +
            (first + row) % of.group) *
           kDim;
  };

  const std::uint32_t keys = base + Shape::kQueryBytes;
  ask_keys<kDim>(view, 0, seen, keys);
  for (int i = static_cast<int>(threadIdx.x); i < kPrefillRows * (kDim / 8); i += kPrefillThreads) {
    const int row = i / (kDim / 8);
    const int piece = i % (kDim / 8);
    T eight[8];
    for (int e = 0; e < 8; ++e) eight[e] = narrow<T>(0.0F);
    if (row < count) {
      const float* from = of.q + row_at(row) + piece * 8;
      for (int e = 0; e < 8; ++e) eight[e] = narrow<T>(from[e]);
    }
    memcpy(reinterpret_cast<char*>(memory) + Layout::offset(row, piece), eight, 16);
  }

  const int own = first + warp * 16 + lane / 4;  // this thread's rows: own and own + 8
  const int sees[2] = {min(seen, before + own / of.group), min(seen, before + (own + 8) / of.group)};
  float sums[kDim / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY};
  float total[2] = {0, 0};
  const int row_of_key = lane % 8 + lane / 16 * 8;
  const int row_of_value = lane % 8 + lane / 8 % 2 * 8;
  int stage = 0;
  for (int from = 0; from < seen; from += kPrefillKeys) {
    if (Shape::kStages > 1 && from + kPrefillKeys < seen) {
      ask_keys<kDim>(view, from + kPrefillKeys, seen, keys + (stage ^ 1) * 2 * Shape::kPlaneBytes);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    const std::uint32_t k = keys + stage * 2 * Shape::kPlaneBytes;
    const std::uint32_t v = k + Shape::kPlaneBytes;
    float scores[kPrefillKeys / 8][4] = {};
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      std::uint32_t a[4];
      load_matrices(a, base + Layout::offset(warp * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
      for (int h = 0; h < kPrefillKeys / 16; ++h) {
        std::uint32_t b[4];
        load_matrices(b, k + Layout::offset(h * 16 + row_of_key, step * 2 + lane / 8 % 2));
        multiply<T>(scores[h * 2], a, b[0], b[1]);
        multiply<T>(scores[h * 2 + 1], a, b[2], b[3]);
      }
    }
    const bool all = from + kPrefillKeys <= least && view.positions == nullptr;
    float top[2] = {largest[0], largest[1]};
#pragma unroll
    for (int n = 0; n < kPrefillKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int slot = from + n * 8 + lane % 4 * 2 + e % 2;
        scores[n][e] *= of.scale;
        if (!all && (slot >= sees[e / 2] || (view.positions != nullptr && view.positions[slot] < 0))) {
          scores[n][e] = -INFINITY;
        }
        top[e / 2] = fmaxf(top[e / 2], scores[n][e]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = fmaxf(top[r], __shfl_xor_sync(~0U, top[r], 1));
      top[r] = fmaxf(top[r], __shfl_xor_sync(~0U, top[r], 2));
      const float shrink = exp2_of(largest[r] - or_zero(top[r]));
      total[r] *= shrink;
      largest[r] = top[r];
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j) {
        sums[j][r * 2] *= shrink;
        sums[j][r * 2 + 1] *= shrink;
      }
    }
#pragma unroll
    for (int h = 0; h < kPrefillKeys / 16; ++h) {
      std::uint32_t a[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float x = exp2_of(scores[h * 2 + half][r * 2] - or_zero(top[r]));
          const float y = exp2_of(scores[h * 2 + half][r * 2 + 1] - or_zero(top[r]));
          total[r] += x + y;
          const T both[2] = {narrow<T>(x), narrow<T>(y)};
          memcpy(&a[half * 2 + r], both, sizeof a[0]);
        }
      }
#pragma unroll
      for (int j = 0; j < kDim / 16; ++j) {
        std::uint32_t b[4];
        load_matrices_transposed(b, v + Layout::offset(h * 16 + row_of_value, j * 2 + lane / 16));
        multiply<T>(sums[j * 2], a, b[0], b[1]);
        multiply<T>(sums[j * 2 + 1], a, b[2], b[3]);
      }
    }
    __syncthreads();  // nobody reads what the next keys are written over
    if (Shape::kStages > 1) {
      stage ^= 1;
    } else if (from + kPrefillKeys < seen) {
      ask_keys<kDim>(view, from + kPrefillKeys, seen, keys);
    }
  }

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] += __shfl_xor_sync(~0U, total[r], 1);
    total[r] += __shfl_xor_sync(~0U, total[r], 2);
    const int row = warp * 16 + lane / 4 + r * 8;
    if (row >= count) continue;
    const float share = total[r] > 0 ? 1 / total[r] : 0;
    float* const to = of.out + row_at(row) + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      *reinterpret_cast<float2*>(to + j * 8) = make_float2(sums[j][r * 2] * share, sums[j][r * 2 + 1] * share);
    }
  }
}

template <class T, int kDim>
void launch_prefill_as(const PrefillArguments& of, const Limits& limits, cudaStream_t stream) {
  auto* const kernel = prefill_kernel<T, kDim>;
  allow_shared(kernel, PrefillShape<kDim>::kBytes);
  const int tiles = (of.prompt.rows * of.group + kPrefillRows - 1) / kPrefillRows;
  launch(kernel, of, dim3(tiles * of.cache.kv_heads, kPrefillThreads), PrefillShape<kDim>::kBytes, {limits, stream});
}

}  // namespace glimpse::kernels::cuda
