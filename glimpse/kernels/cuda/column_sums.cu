// What rows gave to each slot. A block has the keys of 64 slots of a KV head in shared memory and goes over the piece's
// rows that see them, a tile of 128 (token, query head) rows (64 at dimension 256) at a time. Scores are products on
// tensor cores, as in prefill.cuh; each thread adds up its columns, and the warps' sums are added in their order.
//
// Where the piece fills no more than half a tile, as a decoded row does, the other half has what 16 bits leave of the
// queries: rows 8 to 15 of each sixteen (mma.cuh).
#include "glimpse/kernels/cuda/bytes.cuh"
#include "glimpse/kernels/cuda/prefill.cuh"

namespace glimpse::kernels::cuda {
namespace {

constexpr float kLog2OfE = 1.4426950408889634F;

/// Keys of bytes lie in shared memory as f16, without their scales, which lie behind the sums.
template <class T, int kDim>
struct ColumnShape {
  using Prefill = PrefillShape<kDim>;
  using Layout = typename Prefill::Layout;
  static constexpr int kKeyBytes = Layout::bytes(kColumns);
  static constexpr int kSumBytes = kPrefillWarps * kColumns * static_cast<int>(sizeof(float));
  static constexpr int kScaleBytes = kScaled<T> ? kColumns * static_cast<int>(sizeof(float)) : 0;
  static constexpr int kBytes = Prefill::kQueryBytes + kKeyBytes + kSumBytes + kScaleBytes;
};

/// Eight bytes as f16.
__device__ inline uint4 widened(uint2 bytes) {
  std::uint32_t low[2], high[2];
  widen_keys(bytes.x, low);
  widen_keys(bytes.y, high);
  return make_uint4(low[0], low[1], high[0], high[1]);
}

template <class T, int kDim>
__global__ void __launch_bounds__(kPrefillThreads) column_sums_kernel(const __grid_constant__ ColumnSumsArguments of) {
  using Shape = ColumnShape<T, kDim>;
  using Product = MultipliedAs<T>;
  using Layout = typename Shape::Layout;
  constexpr int kTiles = Shape::Prefill::kTiles;
  constexpr int kRows = Shape::Prefill::kRows;
  constexpr int kPieces = kDim / 8;
  extern __shared__ uint4 memory[];
  char* const bytes = reinterpret_cast<char*>(memory);
  auto* const warp_sums = reinterpret_cast<float*>(bytes + Shape::Prefill::kQueryBytes + Shape::kKeyBytes);
  const std::uint32_t queries = shared_address(memory);
  const std::uint32_t keys = queries + Shape::Prefill::kQueryBytes;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.x) % of.cache.kv_heads;
  const int number = static_cast<int>(blockIdx.x) / of.cache.kv_heads / of.tiles;
  const int first_slot = static_cast<int>(blockIdx.x) / of.cache.kv_heads % of.tiles * kColumns;
  begin_kernel(of.cache, false);
  const PromptRows piece = of.pieces[number];
  const HeadView view = of.cache.views[static_cast<std::size_t>(piece.sequence) * of.cache.kv_heads + head];
  const int before = view.slots - piece.behind + 1;  // that the first row sees
  const int seen = before + piece.rows - 1;          // that the last one sees
  if (first_slot >= seen) return;
  const auto freed = [&](int slot) { return view.positions != nullptr && view.positions[slot] < 0; };

  for (int i = static_cast<int>(threadIdx.x); i < kColumns * kPieces; i += kPrefillThreads) {
    const int slot = first_slot + i / kPieces;
    const bool there = slot < seen && !freed(slot);
    const std::size_t number = there ? row_number(view, slot) : 0;
    const std::byte* const from = view.k_plane + row_offset<T>(number, kDim) + i % kPieces * 8 * sizeof(T);
    if constexpr (kScaled<T>) {
      const uint4 eight = there ? widened(*reinterpret_cast<const uint2*>(from)) : make_uint4(0, 0, 0, 0);
      memcpy(bytes + Shape::Prefill::kQueryBytes + Layout::offset(i / kPieces, i % kPieces), &eight, sizeof eight);
      if (i % kPieces != 0) continue;
      const auto* const scale = reinterpret_cast<const float*>(view.k_plane + scale_offset<T>(number, kDim));
      warp_sums[kPrefillWarps * kColumns + i / kPieces] = there ? *scale : 0.0F;
    } else {
      copy_16_bytes<false>(keys + Layout::offset(i / kPieces, i % kPieces), from, there);
    }
  }
  close_copies();
  // This thread's columns: slot first_slot + n * 8 + lane % 4 * 2 + e, bit n * 2 + e.
  std::uint32_t live = 0;
#pragma unroll
  for (int c = 0; c < kColumns / 4; ++c) {
    const int slot = first_slot + c / 2 * 8 + lane % 4 * 2 + c % 2;
    if (slot < seen && !freed(slot)) live |= 1U << c;
  }

  const int rows = piece.rows * of.group;
  const bool few = rows <= kRows / 2;
  const std::size_t heads = static_cast<std::size_t>(of.cache.kv_heads) * of.group;
  const auto query_at = [&](int row) {  // of [R, H]
    return static_cast<std::size_t>(piece.row + row / of.group) * heads + static_cast<std::size_t>(head) * of.group +
           row % of.group;
  };
  const int row_of_key = lane % 8 + lane / 16 * 8;
  float sums[kColumns / 4] = {};
  const int first_row = max(0, first_slot - before + 1) * of.group / kRows * kRows;
  for (int first = first_row; first < rows; first += kRows) {
    __syncthreads();  // nobody reads the queries of the turn before any more
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kPieces; i += kPrefillThreads) {
      const int row = i / kPieces;
      const int part = i % kPieces;
      Product eight[8];
      for (int e = 0; e < 8; ++e) eight[e] = narrow<Product>(0.0F);
      const int query = few ? row / 16 * 8 + row % 8 : first + row;
      if (query < rows) {
        const float4* const from = reinterpret_cast<const float4*>(of.q + query_at(query) * kDim + part * 8);
        const float4 low = from[0], high = from[1];
        const float all[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        for (int e = 0; e < 8; ++e) {
          eight[e] = narrow<Product>(all[e]);
          if (few && row % 16 >= 8) eight[e] = narrow<Product>(all[e] - static_cast<float>(eight[e]));
        }
      }
      memcpy(bytes + Layout::offset(row, part), eight, 16);
    }
    wait_copies<0>();
    __syncthreads();

    float scales[kColumns / 4];
#pragma unroll
    for (int c = 0; c < kColumns / 4; ++c) {
      scales[c] = of.scale;
      if constexpr (kScaled<T>) {
        scales[c] *= warp_sums[kPrefillWarps * kColumns + c / 2 * 8 + lane % 4 * 2 + c % 2];
      }
    }
    float scores[kTiles][kColumns / 8][4] = {};
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      std::uint32_t a[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        load_matrices(a[m], queries + Layout::offset((warp * kTiles + m) * 16 + lane % 16, step * 2 + lane / 16));
      }
#pragma unroll
      for (int h = 0; h < kColumns / 16; ++h) {
        std::uint32_t b[4];
        load_matrices(b, keys + Layout::offset(h * 16 + row_of_key, step * 2 + lane / 8 % 2));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          multiply<Product>(scores[m][h * 2], a[m], b[0], b[1]);
          multiply<Product>(scores[m][h * 2 + 1], a[m], b[2], b[3]);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int tile = warp * kTiles + m;
        const int row = few ? tile * 8 + lane / 4 : first + tile * 16 + lane / 4 + r * 8;
        if (row >= rows || (few && r == 1)) continue;
        const float lse = of.lse[query_at(row)] * kLog2OfE;
        const int sees = before + row / of.group;
#pragma unroll
        for (int c = 0; c < kColumns / 4; ++c) {
          const int slot = first_slot + c / 2 * 8 + lane % 4 * 2 + c % 2;
          if ((live >> c & 1U) == 0 || slot >= sees) continue;
          const float rest = few ? scores[m][c / 2][2 + c % 2] : 0.0F;
          sums[c] += exp2_of((scores[m][c / 2][r * 2 + c % 2] + rest) * scales[c] - lse);
        }
      }
    }
  }

#pragma unroll
  for (int c = 0; c < kColumns / 4; ++c) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) sums[c] += __shfl_xor_sync(~0U, sums[c], step);
    if (lane < 4) warp_sums[warp * kColumns + c / 2 * 8 + lane * 2 + c % 2] = sums[c];
  }
  __syncthreads();
  const int slot = first_slot + static_cast<int>(threadIdx.x);
  if (threadIdx.x >= kColumns || slot >= seen) return;
  float sum = 0;
  for (int w = 0; w < kPrefillWarps; ++w) sum += warp_sums[w * kColumns + static_cast<int>(threadIdx.x)];
  of.sums[(static_cast<std::size_t>(number) * of.cache.kv_heads + head) * of.stride + slot] = sum;
}

template <class T, int kDim>
void launch_as(const ColumnSumsArguments& of, const Limits& limits, cudaStream_t stream) {
  auto* const kernel = column_sums_kernel<T, kDim>;
  constexpr int kBytes = ColumnShape<T, kDim>::kBytes;
  allow_shared(kernel, kBytes);
  launch(kernel, of, dim3(of.count * of.tiles * of.cache.kv_heads, kPrefillThreads), kBytes, {limits, stream});
}

template <class T>
void launch_of(const ColumnSumsArguments& of, const Limits& limits, cudaStream_t stream) {
  switch (of.cache.dim) {
    case 64:
      return launch_as<T, 64>(of, limits, stream);
    case 96:
      return launch_as<T, 96>(of, limits, stream);
    case 128:
      return launch_as<T, 128>(of, limits, stream);
    default:
      return launch_as<T, 256>(of, limits, stream);
  }
}

}  // namespace

void launch_column_sums(const ColumnSumsArguments& arguments, const Limits& limits, CUstream_st* stream) {
  for_stored(arguments.cache.type, [&](auto type) { launch_of<decltype(type)>(arguments, limits, stream); });
}

}  // namespace glimpse::kernels::cuda
