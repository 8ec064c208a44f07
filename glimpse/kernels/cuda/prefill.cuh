// Attention of a prompt's rows, dense or of tiles that read a part of what lies before them. A block takes a tile of
// 128 (token, query head) rows of one KV head (64 at dimension 256), so that K and V are read once for the group, and
// goes over the keys that its last row sees, 32 at a time: the next keys come by cp.async while tensor cores work on
// these. A warp has 32 rows for itself, so that each key that it loads from shared memory serves two products, and its
// scores never leave its registers. Queries and weights are 16 bits wide, sums are f32.
#pragma once

#include "glimpse/kernels/cuda/feed.cuh"
#include "glimpse/kernels/cuda/key_order.cuh"
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/share.cuh"

namespace glimpse::kernels::cuda {

inline constexpr int kPrefillKeys = 32;
inline constexpr int kPrefillWarps = 4;
inline constexpr int kPrefillThreads = kPrefillWarps * 32;

template <int kDim>
struct PrefillShape {
  using Layout = TileLayout<kDim>;
  static constexpr int kTiles = kDim > 128 ? 1 : 2;  ///< of 16 rows, for each warp
  static constexpr int kRows = kPrefillWarps * kTiles * 16;
  static constexpr int kStages = 3;
  static constexpr int kQueryBytes = Layout::bytes(kRows);
  static constexpr int kPlaneBytes = Layout::bytes(kPrefillKeys);
  static constexpr int kBytes = kQueryBytes + 2 * kStages * kPlaneBytes;
};

/// Slots are their own order.
struct EverySlot {
  static constexpr int shift = 0;
  __device__ int slot(int entry) const { return entry; }
};

/// Asks for K and V of 32 entries from `first` on, of those below `seen`; what lies behind is zeros.
template <int kDim, class Order>
__device__ inline void ask_keys(const HeadView& view, const Order& order, int first, int seen, std::uint32_t to) {
  using Shape = PrefillShape<kDim>;
  constexpr int kPieces = kDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kPrefillKeys * kPieces; i += kPrefillThreads) {
    const int row = i / kPieces;
    const int piece = i % kPieces;
    const int slot = first + row < seen ? order.slot(first + row) : 0;
    const bool there = first + row < seen && (view.positions == nullptr || view.positions[slot] >= 0);
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

/// A block's rows of a prompt.
struct PromptBlock {
  PromptRows prompt;
  int head = 0, first = 0, count = 0;
  HeadView view{};
  EverySlot order;

  __device__ PromptBlock(const PrefillArguments& of, int rows) {
    const int tiles = (of.prompt.rows * of.group + rows - 1) / rows;
    const int number = static_cast<int>(blockIdx.x) / of.cache.kv_heads;
    prompt = of.pieces == nullptr ? of.prompt : of.pieces[number / tiles];
    head = static_cast<int>(blockIdx.x) % of.cache.kv_heads;
    first = (tiles - 1 - number % tiles) * rows;  // those that see most first
    count = min(rows, prompt.rows * of.group - first);
    view = of.cache.views[static_cast<std::size_t>(prompt.sequence) * of.cache.kv_heads + head];
  }
};
__device__ inline const PrefillArguments& prefill_of(const PrefillArguments& of) {
  return of;
}
__device__ inline const PrefillArguments& prefill_of(const TileArguments& of) {
  return of.prefill;
}

template <class T, int kDim, class Arguments, class Block>
__global__ void __launch_bounds__(kPrefillThreads) prefill_kernel(const __grid_constant__ Arguments arguments) {
  const PrefillArguments& of = prefill_of(arguments);
  using Shape = PrefillShape<kDim>;
  using Layout = typename Shape::Layout;
  constexpr int kTiles = Shape::kTiles;
  extern __shared__ uint4 memory[];
  const std::uint32_t base = shared_address(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  const Block block(arguments, Shape::kRows);
  if (block.count <= 0) return;
  const HeadView& view = block.view;
  const int head = block.head;
  const int first = block.first;
  const int count = block.count;
  const int before = view.slots - block.prompt.behind + 1 - block.order.shift;  // that the first row sees
  const int least = before + first / of.group;                                  // that the first row of the tile sees
  const int seen = before + (first + count - 1) / of.group;
  const std::size_t heads = static_cast<std::size_t>(of.cache.kv_heads) * of.group;
  const auto row_at = [&](int row) {  // of [R, H, d]
    const int token = block.prompt.row + (first + row) / of.group;
    return (static_cast<std::size_t>(token) * heads + static_cast<std::size_t>(head) * of.group +
            (first + row) % of.group) *
           kDim;
  };

  const std::uint32_t keys = base + Shape::kQueryBytes;
  const auto stage_at = [&](int stage) { return keys + stage * 2 * Shape::kPlaneBytes; };
#pragma unroll
  for (int i = 0; i < Shape::kStages - 1; ++i) ask_keys<kDim>(view, block.order, i * kPrefillKeys, seen, stage_at(i));
  for (int i = static_cast<int>(threadIdx.x); i < Shape::kRows * (kDim / 8); i += kPrefillThreads) {
    const int row = i / (kDim / 8);
    const int piece = i % (kDim / 8);
    T eight[8];
    for (int e = 0; e < 8; ++e) eight[e] = narrow<T>(0.0F);
    if (row < count) {
      const float4* const from = reinterpret_cast<const float4*>(of.q + row_at(row) + piece * 8);
      const float4 low = from[0], high = from[1];
      const float all[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      for (int e = 0; e < 8; ++e) eight[e] = narrow<T>(all[e]);
    }
    memcpy(reinterpret_cast<char*>(memory) + Layout::offset(row, piece), eight, 16);
  }

  // This thread's rows of tile m: own(m) and own(m) + 8.
  const auto own = [&](int m) { return warp * kTiles * 16 + m * 16 + lane / 4; };
  int sees[kTiles][2];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) sees[m][r] = min(seen, before + (first + own(m) + r * 8) / of.group);
  }
  float sums[kTiles][kDim / 8][4] = {};
  float largest[kTiles][2], total[kTiles][2] = {};
#pragma unroll
  for (int m = 0; m < kTiles; ++m) largest[m][0] = largest[m][1] = -INFINITY;
  const int row_of_key = lane % 8 + lane / 16 * 8;
  const int row_of_value = lane % 8 + lane / 8 % 2 * 8;
  int stage = 0;
  for (int from = 0; from < seen; from += kPrefillKeys) {
    wait_copies<Shape::kStages - 2>();
    __syncthreads();  // these keys are there, and nobody reads those of the turn before any more
    const int free_stage = stage == 0 ? Shape::kStages - 1 : stage - 1;
    ask_keys<kDim>(view, block.order, from + (Shape::kStages - 1) * kPrefillKeys, seen, stage_at(free_stage));
    const std::uint32_t k = stage_at(stage);
    const std::uint32_t v = k + Shape::kPlaneBytes;
    stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
    float scores[kTiles][kPrefillKeys / 8][4] = {};
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      std::uint32_t a[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        load_matrices(a[m], base + Layout::offset((warp * kTiles + m) * 16 + lane % 16, step * 2 + lane / 16));
      }
#pragma unroll
      for (int h = 0; h < kPrefillKeys / 16; ++h) {
        std::uint32_t b[4];
        load_matrices(b, k + Layout::offset(h * 16 + row_of_key, step * 2 + lane / 8 % 2));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          multiply<T>(scores[m][h * 2], a[m], b[0], b[1]);
          multiply<T>(scores[m][h * 2 + 1], a[m], b[2], b[3]);
        }
      }
    }
    const bool all = from + kPrefillKeys <= least && view.positions == nullptr;
    std::uint32_t weights[kTiles][kPrefillKeys / 16][4];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      float top[2] = {largest[m][0], largest[m][1]};
#pragma unroll
      for (int n = 0; n < kPrefillKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = from + n * 8 + lane % 4 * 2 + e % 2;
          scores[m][n][e] *= of.scale;
          if (!all &&
              (key >= sees[m][e / 2] || (view.positions != nullptr && view.positions[block.order.slot(key)] < 0))) {
            scores[m][n][e] = -INFINITY;
          }
          top[e / 2] = fmaxf(top[e / 2], scores[m][n][e]);
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0U, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0U, top[r], 2));
      }
      if (__any_sync(~0U, top[0] != largest[m][0] || top[1] != largest[m][1])) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float shrink = exp2_of(largest[m][r] - or_zero(top[r]));
          total[m][r] *= shrink;
          largest[m][r] = top[r];
#pragma unroll
          for (int j = 0; j < kDim / 8; ++j) {
            sums[m][j][r * 2] *= shrink;
            sums[m][j][r * 2 + 1] *= shrink;
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kPrefillKeys / 8; ++n) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float x = exp2_of(scores[m][n][r * 2] - or_zero(top[r]));
          const float y = exp2_of(scores[m][n][r * 2 + 1] - or_zero(top[r]));
          total[m][r] += x + y;
          const T both[2] = {narrow<T>(x), narrow<T>(y)};
          memcpy(&weights[m][n / 2][n % 2 * 2 + r], both, sizeof both);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kPrefillKeys / 16; ++h) {
#pragma unroll
      for (int j = 0; j < kDim / 16; ++j) {
        std::uint32_t b[4];
        load_matrices_transposed(b, v + Layout::offset(h * 16 + row_of_value, j * 2 + lane / 16));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          multiply<T>(sums[m][j * 2], weights[m][h], b[0], b[1]);
          multiply<T>(sums[m][j * 2 + 1], weights[m][h], b[2], b[3]);
        }
      }
    }
  }
  wait_copies<0>();  // of keys behind the last, which nobody needs

#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = total[m][r];
      sum += __shfl_xor_sync(~0U, sum, 1);
      sum += __shfl_xor_sync(~0U, sum, 2);
      const int row = own(m) + r * 8;
      if (row >= count) continue;
      const float share = sum > 0 ? 1 / sum : 0;
      if (of.lse != nullptr && lane % 4 == 0) {
        of.lse[row_at(row) / kDim] = sum > 0 ? (largest[m][r] + log2f(sum)) * kLogOf2 : -INFINITY;
      }
      float* const to = of.out + row_at(row) + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j) {
        *reinterpret_cast<float2*>(to + j * 8) = make_float2(sums[m][j][r * 2] * share, sums[m][j][r * 2 + 1] * share);
      }
    }
  }
}

template <class T, int kDim>
void launch_prefill_as(const PrefillArguments& of, const Limits& limits, cudaStream_t stream) {
  auto* const kernel = prefill_kernel<T, kDim, PrefillArguments, PromptBlock>;
  allow_shared(kernel, PrefillShape<kDim>::kBytes);
  const int tiles = (of.prompt.rows * of.group + PrefillShape<kDim>::kRows - 1) / PrefillShape<kDim>::kRows;
  launch(kernel, of, dim3(of.count * tiles * of.cache.kv_heads, kPrefillThreads), PrefillShape<kDim>::kBytes,
         {limits, stream});
}

}  // namespace glimpse::kernels::cuda
