// The kernel of made_rows.h: a block for some rows of a set. A warp has sixteen rows by a quarter of the dimensions; it
// reads factors and basis as tensor cores take them, each basis value as two of 16 bits (packed_basis). Nothing waits
// but for the rows' slots.
#include <type_traits>

#include "glimpse/kernels/cuda/cache_rows.cuh"
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/made_rows.h"
#include "glimpse/kernels/cuda/mma.cuh"
#include "glimpse/kernels/cuda/share.cuh"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kRows = 32;  ///< of a block
constexpr int kThreads = 256;
constexpr int kColumnWarps = 4;                             ///< that share the dimensions of a row
constexpr int kMostTiles = kMaxHeadDim / 8 / kColumnWarps;  ///< of eight dimensions, of a warp

struct MakeArguments {
  Cache cache;
  MakeRowsOp op;
  int parts = 1;  ///< blocks that share a set
};

/// factor_type()
template <class T>
using FactorOf = std::conditional_t<kScaled<T>, __nv_bfloat16, T>;

/// A row, and of bytes where its scale lies.
struct Source {
  const uint4* k;
  const uint4* v;
  const float* k_scale;
  const float* v_scale;
};

struct Room {
  Source sources[kRows];
  int slots[kRows];
  bool made[kRows];
  float keys[];  // [kRows, d + 4]: rows begin in other banks
};

__device__ bool is_marked(const MadeSet& set, int position) {
  const int unit = position / set.chunk;
  int first = 0, last = set.marked_count;
  while (first < last) {
    const int middle = (first + last) / 2;
    if (set.marked[middle] < unit) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first < set.marked_count && set.marked[first] == unit;
}

/// Two columns of a row's factors, from `column` on; what is behind the rank is 0.
__device__ std::uint32_t factors_at(const MadeSet& set, bool there, int slot, int column) {
  if (!there || column >= set.rank) return 0;
  const std::uint32_t both = *reinterpret_cast<const std::uint32_t*>(
      set.factors + static_cast<std::size_t>(slot) * factor_stride(set.stride) + column);
  return column + 1 < set.rank ? both : both & 0xffffU;
}

/// keys = U B of the block's rows; of those that are not made, zeros.
template <class T>
__device__ void multiply_rows(const MakeArguments& of, const MadeSet& set, Room& room) {
  const int dim = of.cache.dim, lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row = warp / kColumnWarps * 16 + lane / 4;
  const int tiles = dim / 8 / kColumnWarps, first_tile = warp % kColumnWarps * tiles;
  const int slots[2] = {room.slots[row], room.slots[row + 8]};
  const bool made[2] = {room.made[row], room.made[row + 8]};
  const auto* const basis = reinterpret_cast<const uint4*>(set.basis);
  float sums[kMostTiles][4] = {};
#pragma unroll 2
  for (int k = 0; k < (set.rank + 15) / 16; ++k) {
    const int column = k * 16 + lane % 4 * 2;
    const std::uint32_t a[4] = {factors_at(set, made[0], slots[0], column), factors_at(set, made[1], slots[1], column),
                                factors_at(set, made[0], slots[0], column + 8),
                                factors_at(set, made[1], slots[1], column + 8)};
#pragma unroll
    for (int n = 0; n < kMostTiles; ++n) {
      if (n >= tiles) break;
      const uint4 b = basis[(static_cast<std::size_t>(k) * (dim / 8) + first_tile + n) * 32 + lane];
      multiply<T>(sums[n], a, b.x, b.y);
      multiply<T>(sums[n], a, b.z, b.w);
    }
  }
#pragma unroll
  for (int n = 0; n < kMostTiles; ++n) {
    if (n >= tiles) break;
    float* const to = room.keys + row * (dim + 4) + (first_tile + n) * 8 + lane % 4 * 2;
    *reinterpret_cast<float2*>(to) = make_float2(sums[n][0], sums[n][1]);
    *reinterpret_cast<float2*>(to + 8 * (dim + 4)) = make_float2(sums[n][2], sums[n][3]);
  }
  __syncthreads();
}

/// Where a row of the cache lies: in its planes, or in the host's memory.
template <class T>
__device__ Source source_of(const MakeArguments& of, const HeadView& view, int slot) {
  const std::size_t page_bytes = page_bytes_of<T>(of.cache.dim);
  const auto in_page = static_cast<std::size_t>(slot & (kPageTokens - 1));
  const PageId page = view.pages[slot >> kPageShift];
  const auto source = [&](const std::byte* k, const std::byte* v) {
    const std::size_t row = row_offset<T>(in_page, of.cache.dim), scale = scale_offset<T>(in_page, of.cache.dim);
    return Source{reinterpret_cast<const uint4*>(k + row), reinterpret_cast<const uint4*>(v + row),
                  reinterpret_cast<const float*>(k + scale), reinterpret_cast<const float*>(v + scale)};
  };
  if ((page & kWaitingPage) == 0) return source(view.k_plane + page * page_bytes, view.v_plane + page * page_bytes);
  const auto waits = static_cast<int>(page & ~kWaitingPage);
  const std::byte* const slot_of_page = of.op.pieces.raw()[waits / of.op.piece_slots] +
                                        static_cast<std::size_t>(waits % of.op.piece_slots) * 2 * page_bytes;
  return source(slot_of_page, slot_of_page + page_bytes);
}

template <class T>
__global__ void __launch_bounds__(kThreads) make_rows_kernel(const __grid_constant__ MakeArguments of) {
  extern __shared__ __align__(16) unsigned char memory[];
  Room& room = *reinterpret_cast<Room*>(memory);
  const MadeSet set = of.op.of.raw()[static_cast<int>(blockIdx.x) / of.parts];
  const int thread = static_cast<int>(threadIdx.x), dim = of.cache.dim;
  const int begin = static_cast<int>(blockIdx.x) % of.parts * kRows;
  const HeadView& view = view_of(of.cache, set.row, set.head);
  const int counted = of.op.sets.count.raw()[set.set];
  const bool all = counted == kEverything;
  const int count = all ? seen_slots(of.cache, set.row, view) : counted;
  const std::size_t capacity = static_cast<std::size_t>(of.op.sets.capacity);
  if (begin == 0 && thread == 0) of.op.sets.count.raw()[set.list] = count;
  if (begin >= count) return;
  const int rows = min(kRows, count - begin);
  if (thread < kRows) {
    const int slot = thread >= rows ? 0
                     : all          ? begin + thread
                           : of.op.sets.slots.raw()[static_cast<std::size_t>(set.set) * capacity + begin + thread];
    room.slots[thread] = slot;
    room.made[thread] = thread < rows && slot < set.end && !is_marked(set, slot);
    if (thread < rows) {
      room.sources[thread] = source_of<T>(of, view, slot);
      of.op.sets.slots.raw()[static_cast<std::size_t>(set.list) * capacity + begin + thread] =
          set.first + begin + thread;
    }
  }
  const bool any = __syncthreads_or(thread < kRows && room.made[thread]) != 0;
  const HeadView& to = of.op.made.views.raw()[static_cast<std::size_t>(of.cache.sequence[set.row]) * of.cache.kv_heads +
                                              static_cast<std::size_t>(set.head)];
  constexpr int kValues = 16 / static_cast<int>(sizeof(T));
  const int pieces = dim / kValues;  // of 16 bytes
  for (int i = thread; i < rows * pieces; i += kThreads) {
    const int r = i / pieces, piece = i % pieces;
    const Source from = room.sources[r];
    const std::size_t target = row_number(to, set.first + begin + r), at = row_offset<T>(target, dim);
    const bool copies = !room.made[r];
    uint4 key;
    if (copies) key = from.k[piece];
    reinterpret_cast<uint4*>(to.v_plane + at)[piece] = from.v[piece];
    if (copies) reinterpret_cast<uint4*>(to.k_plane + at)[piece] = key;
    if constexpr (kScaled<T>) {
      if (piece > 0) continue;
      const std::size_t scale = scale_offset<T>(target, dim);
      *reinterpret_cast<float*>(to.v_plane + scale) = *from.v_scale;
      if (copies) *reinterpret_cast<float*>(to.k_plane + scale) = *from.k_scale;
    }
  }
  if (!any) return;
  multiply_rows<FactorOf<T>>(of, set, room);
  const int lane = thread % 32;
  for (int r = thread / 32; r < rows; r += kThreads / 32) {
    if (!room.made[r]) continue;
    const OwnRow own(of.cache, to.k_plane, row_number(to, set.first + begin + r));
    float* const key = room.keys + r * (dim + 4);
    const float* const angles =
        of.op.angles.raw() + static_cast<std::size_t>(room.slots[r]) * static_cast<std::size_t>(of.op.turned);
    for (int i = lane; i < of.op.turned / 2; i += 32) {
      const int first = of.op.neox ? i : 2 * i, second = of.op.neox ? i + of.op.turned / 2 : 2 * i + 1;
      const float cosine = angles[2 * i], sine = angles[2 * i + 1], a = key[first], b = key[second];
      key[first] = a * cosine - b * sine;
      key[second] = a * sine + b * cosine;
    }
    __syncwarp();
    write_pairs(own, dim, [key](int pair) { return make_float2(key[2 * pair], key[2 * pair + 1]); });
  }
}

}  // namespace

void make_rows(Stream& stream, const MakeRowsOp& op) {
  require_supported(op.cache.format);
  if (op.count == 0) return;
  const MakeArguments of{cache_of(op.cache, op.rows), op, (op.most + kRows - 1) / kRows};
  const int bytes =
      static_cast<int>(sizeof(Room)) + kRows * (op.cache.format.dim + 4) * static_cast<int>(sizeof(float));
  const Limits limits;
  auto* const kernel = for_stored(op.cache.format.type, [](auto type) { return &make_rows_kernel<decltype(type)>; });
  allow_shared(kernel, bytes);
  launch(kernel, of, dim3(static_cast<unsigned>(op.count * of.parts), kThreads), bytes,
         {limits, static_cast<cudaStream_t>(stream.raw()), false});
}

}  // namespace glimpse::kernels::cuda
