// Sets that are merged by rank. Lists are sorted piece by piece in shared memory; the rank of an entry is its place in
// its own piece and, found by halving, in each of the others. What is left of a unit is its least number, so the order
// in which threads come does not matter.
#include <algorithm>
#include <bit>

#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/parts.h"
#include "glimpse/kernels/cuda/ranks.cuh"
#include "glimpse/kernels/cuda/share.cuh"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kPiece = 2048;  ///< entries that are sorted together

struct MergeArguments {
  Cache cache;
  RankMergeOp op;
  int pieces = 1;
  int room = 2;    ///< of a piece: a power of two
  int stride = 0;  ///< rank_room
};

/// A list of a merge.
struct RankList {
  const std::int32_t* slots = nullptr;  ///< null: every slot
  int units = 0;                        ///< that have a rank
};
__device__ RankList list_of(const MergeArguments& of, const RankMerge& merge, int list, int slots) {
  const std::int32_t set = merge.first_list + list;
  const std::int32_t count = of.op.sets.count.raw()[set];
  const int all = (slots + merge.block - 1) / merge.block;
  const int in = count == kEverything ? all : (count + merge.block - 1) / merge.block;
  RankList made;
  if (count != kEverything) made.slots = of.op.sets.slots.raw() + static_cast<std::size_t>(set) * of.op.sets.capacity;
  // Only the last unit of a row may be short, and that one has no rank.
  made.units = max(0, min(merge.wanted, in - merge.head_units - (all - merge.tail_units)));
  return made;
}

/// The larger the better; of equal scores the lower unit.
__device__ std::uint64_t key_of(const MergeArguments& of, const RankMerge& merge, int list, int unit, int slots) {
  const std::size_t query = static_cast<std::size_t>(merge.row) * of.cache.kv_heads * of.op.group + list;
  const float* const scores = of.op.scores.scores.raw() + query * of.op.scores.stride;
  float best = -INFINITY;
  for (int slot = unit * merge.block; slot < min(slots, (unit + 1) * merge.block); ++slot)
    best = fmaxf(best, scores[slot]);
  return std::uint64_t{order_of(best)} << 32 | (~0U - static_cast<unsigned>(unit));
}

__global__ void __launch_bounds__(kThreads) sort_kernel(const __grid_constant__ MergeArguments of) {
  extern __shared__ std::uint64_t found[];
  const int piece = static_cast<int>(blockIdx.x) % of.pieces;
  const int list = static_cast<int>(blockIdx.x) / of.pieces % of.op.lists;
  const int number = static_cast<int>(blockIdx.x) / of.pieces / of.op.lists;
  const RankMerge merge = of.op.merges.raw()[number];
  const int slots = seen_slots(of.cache, merge.row, view_of(of.cache, merge.row, merge.head));
  const int units = (slots + merge.block - 1) / merge.block;
  float* const values =
      of.op.values.raw() + (static_cast<std::size_t>(merge.row) * of.cache.kv_heads + merge.head) * of.op.stride;
  const int thread = static_cast<int>(threadIdx.x);
  for (int unit = (list * of.pieces + piece) * kThreads + thread; unit < units;
       unit += of.op.lists * of.pieces * kThreads) {
    values[unit] = -INFINITY;
  }
  if (list >= merge.lists) return;
  const RankList from = list_of(of, merge, list, slots);
  const int first = piece * kPiece;
  const int count = min(kPiece, from.units - first);
  if (count <= 0) return;
  for (int i = thread; i < of.room; i += kThreads) {
    std::uint64_t key = 0;
    if (i < count) {
      const int at = merge.head_units + first + i;
      key = key_of(of, merge, list, from.slots == nullptr ? at : from.slots[at * merge.block] / merge.block, slots);
    }
    found[i] = key;
  }
  __syncthreads();
  sort_down<kThreads>(found, of.room);
  std::uint64_t* const to =
      of.op.keys.raw() + (static_cast<std::size_t>(number) * of.op.lists + list) * of.stride + first;
  for (int i = thread; i < count; i += kThreads) to[i] = found[i];
}

__global__ void __launch_bounds__(kThreads) rank_kernel(const __grid_constant__ MergeArguments of) {
  const int blocks = (of.stride + kThreads - 1) / kThreads;
  const int list = static_cast<int>(blockIdx.x) / blocks % of.op.lists;
  const int number = static_cast<int>(blockIdx.x) / blocks / of.op.lists;
  const RankMerge merge = of.op.merges.raw()[number];
  if (list >= merge.lists) return;
  const int slots = seen_slots(of.cache, merge.row, view_of(of.cache, merge.row, merge.head));
  const int count = list_of(of, merge, list, slots).units;
  const int at = static_cast<int>(blockIdx.x) % blocks * kThreads + static_cast<int>(threadIdx.x);
  if (at >= count) return;
  const std::uint64_t* const keys =
      of.op.keys.raw() + (static_cast<std::size_t>(number) * of.op.lists + list) * of.stride;
  const std::uint64_t key = keys[at];
  if (key >> 32 == 0) return;  // not a number, or of freed slots
  int rank = at % kPiece;
  for (int first = 0; first < count; first += kPiece) {
    if (first == at / kPiece * kPiece) continue;
    int low = first, high = min(count, first + kPiece);  // the first entry that is not better
    while (low < high) {
      const int middle = (low + high) / 2;
      if (keys[middle] > key) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    rank += low - first;
  }
  const unsigned unit = ~0U - static_cast<unsigned>(key);
  float* const values =
      of.op.values.raw() + (static_cast<std::size_t>(merge.row) * of.cache.kv_heads + merge.head) * of.op.stride;
  // Of numbers that are not above zero the larger one has the lower bits.
  const float value = -static_cast<float>(static_cast<long long>(rank) * merge.lists + list);
  atomicMin(reinterpret_cast<unsigned*>(values + unit), __float_as_uint(value));
}

void launch_of(Stream& stream, void (*kernel)(MergeArguments), const MergeArguments& of, std::size_t blocks,
               int bytes) {
  Limits limits;
  allow_shared(kernel, bytes);
  launch(kernel, of, dim3(static_cast<unsigned>(blocks), kThreads), bytes,
         {limits, static_cast<cudaStream_t>(stream.raw()), false});
}

}  // namespace

void merge_ranks(Stream& stream, const RankMergeOp& op) {
  if (op.count == 0) return;
  check(op.lists > 0 && op.most >= 0, "a merge of lists");
  MergeArguments of;
  of.cache = {.kv_heads = op.cache.kv_heads,
              .rows = op.rows.rows,
              .sequences = op.cache.sequences,
              .views = op.cache.views.raw(),
              .sequence = op.rows.sequence.raw(),
              .behind = op.rows.behind.raw()};
  of.op = op;
  of.pieces = std::max(1, (op.most + kPiece - 1) / kPiece);
  of.room = static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::clamp(op.most, 2, kPiece))));
  of.stride = static_cast<int>(rank_room(op.most));
  const std::size_t lists = static_cast<std::size_t>(op.count) * static_cast<std::size_t>(op.lists);
  launch_of(stream, sort_kernel, of, lists * static_cast<std::size_t>(of.pieces),
            of.room * static_cast<int>(sizeof(std::uint64_t)));
  if (op.most == 0) return;
  launch_of(stream, rank_kernel, of, lists * static_cast<std::size_t>((of.stride + kThreads - 1) / kThreads), 0);
}

}  // namespace glimpse::kernels::cuda
