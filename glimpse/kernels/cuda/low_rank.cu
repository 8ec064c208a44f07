// The kernel of low_rank.h: a block for some rows of a set. Products of factors in f32, a part of the columns in shared
// memory at a time; a thread has four rows by four dimensions.
#include "glimpse/kernels/cuda/cache_rows.cuh"
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/low_rank.h"
#include "glimpse/kernels/cuda/rows.cuh"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kRows = 32;     ///< of a block
constexpr int kColumns = 32;  ///< of the factors at a time
constexpr int kWidth = 128;   ///< dimensions at a time
constexpr int kThreads = 256;
constexpr int kEach = 4;  ///< rows, and dimensions, of a thread
static_assert(kRows / kEach * (kWidth / kEach) == kThreads);

struct MakeArguments {
  Cache cache;
  MakeRowsOp op;
  int parts = 1;  ///< blocks that share a set
};

struct Room {
  float factors[kColumns][kRows];
  float basis[kColumns][kWidth];
  int slots[kRows];
  bool made[kRows];
  float keys[];  // [kRows, d]
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

__device__ float widened(std::uint16_t bits, KvType type) {
  if (type == KvType::f16) return __half2float(__ushort_as_half(bits));
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

/// keys = U B of the block's rows; of those that are not made, zeros.
__device__ void multiply(const MakeArguments& of, const MadeSet& set, Room& room) {
  const int dim = of.cache.dim, thread = static_cast<int>(threadIdx.x);
  const int row = thread / (kWidth / kEach) * kEach, column = thread % (kWidth / kEach) * kEach;
  for (int from = 0; from < dim; from += kWidth) {
    float sums[kEach][kEach] = {};
    for (int k = 0; k < set.rank; k += kColumns) {
      __syncthreads();
      for (int i = thread; i < kRows * kColumns; i += kThreads) {
        const int r = i / kColumns, c = i % kColumns;
        const bool there = room.made[r] && k + c < set.rank;
        room.factors[c][r] =
            there ? widened(set.factors[static_cast<std::size_t>(room.slots[r]) * set.stride + k + c], of.cache.type)
                  : 0.0F;
      }
      for (int i = thread; i < kColumns * kWidth; i += kThreads) {
        const int c = i / kWidth, d = from + i % kWidth;
        room.basis[c][i % kWidth] =
            k + c < set.rank && d < dim ? set.basis[static_cast<std::size_t>(k + c) * dim + d] : 0.0F;
      }
      __syncthreads();
#pragma unroll 8
      for (int c = 0; c < kColumns; ++c) {
        const float4 u = *reinterpret_cast<const float4*>(&room.factors[c][row]);
        const float4 b = *reinterpret_cast<const float4*>(&room.basis[c][column]);
        const float us[kEach] = {u.x, u.y, u.z, u.w}, bs[kEach] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
#pragma unroll
          for (int j = 0; j < kEach; ++j) sums[i][j] += us[i] * bs[j];
        }
      }
    }
    if (from + column < dim) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        *reinterpret_cast<float4*>(room.keys + (row + i) * dim + from + column) =
            make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
      }
    }
  }
  __syncthreads();
}

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
      of.op.sets.slots.raw()[static_cast<std::size_t>(set.list) * capacity + begin + thread] =
          set.first + begin + thread;
    }
  }
  if (__syncthreads_or(thread < kRows && room.made[thread]) != 0) multiply(of, set, room);
  const Cache made{of.cache.type,      dim,
                   of.cache.kv_heads,  of.cache.rows,
                   of.cache.sequences, of.op.made.views.raw(),
                   of.cache.sequence,  of.cache.behind};
  const HeadView& to = view_of(made, set.row, set.head);
  const auto place = [dim](const HeadView& head, int slot) {
    return (static_cast<std::size_t>(head.pages[slot >> kPageShift]) * kPageTokens +
            static_cast<std::size_t>(slot & (kPageTokens - 1))) *
           (dim / 2);
  };
  const int lane = thread % 32;
  for (int r = thread / 32; r < rows; r += kThreads / 32) {
    const std::size_t source = place(view, room.slots[r]), target = place(to, set.first + begin + r);
    const auto* const k = reinterpret_cast<const std::uint32_t*>(view.k_plane) + source;
    const auto* const v = reinterpret_cast<const std::uint32_t*>(view.v_plane) + source;
    auto* const own_k = reinterpret_cast<std::uint32_t*>(to.k_plane) + target;
    auto* const own_v = reinterpret_cast<std::uint32_t*>(to.v_plane) + target;
    for (int pair = lane; pair < dim / 2; pair += 32) own_v[pair] = v[pair];
    if (!room.made[r]) {
      for (int pair = lane; pair < dim / 2; pair += 32) own_k[pair] = k[pair];
      continue;
    }
    float* const key = room.keys + r * dim;
    const float* const angles =
        of.op.angles.raw() + static_cast<std::size_t>(room.slots[r]) * static_cast<std::size_t>(of.op.turned);
    for (int i = lane; i < of.op.turned / 2; i += 32) {
      const int first = of.op.neox ? i : 2 * i, second = of.op.neox ? i + of.op.turned / 2 : 2 * i + 1;
      const float cosine = angles[2 * i], sine = angles[2 * i + 1], a = key[first], b = key[second];
      key[first] = a * cosine - b * sine;
      key[second] = a * sine + b * cosine;
    }
    __syncwarp();
    for (int pair = lane; pair < dim / 2; pair += 32) {
      const unsigned low = cache_bits(key[2 * pair], of.cache.type),
                     high = cache_bits(key[2 * pair + 1], of.cache.type);
      own_k[pair] = low | high << 16;
    }
  }
}

}  // namespace

void make_rows(Stream& stream, const MakeRowsOp& op) {
  require_supported(op.cache.format);
  if (op.count == 0) return;
  const MakeArguments of{cache_of(op.cache, op.rows), op, (op.most + kRows - 1) / kRows};
  const int bytes = static_cast<int>(sizeof(Room)) + kRows * op.cache.format.dim * static_cast<int>(sizeof(float));
  const Limits limits;
  allow_shared(make_rows_kernel, bytes);
  launch(make_rows_kernel, of, dim3(static_cast<unsigned>(op.count * of.parts), kThreads), bytes,
         {limits, static_cast<cudaStream_t>(stream.raw()), false});
}

}  // namespace glimpse::kernels::cuda
