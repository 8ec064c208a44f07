// The kernels of parts.h. All are small beside attention: unite is one block for each set, add_heat reads the scores
// that attention left. Sums have one writer each and a fixed order.
#include <algorithm>
#include <bit>

#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/order.cuh"
#include "glimpse/kernels/cuda/parts.h"
#include "glimpse/kernels/cuda/ranks.cuh"
#include "glimpse/kernels/cuda/share.cuh"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kUniteThreads = 512;
constexpr int kHeatWarps = 8;
constexpr int kThreads = 256;

struct UniteArguments {
  Cache cache;
  UniteOp op;
  int room = 0;  ///< for candidates: a power of two
};

/// The largest score of a unit over the scoring query heads; all lanes of a warp have it.
__device__ float best_score(const UniteArguments& of, const Union& u, int begin, int end) {
  const std::size_t first = static_cast<std::size_t>(u.row) * of.cache.kv_heads * of.op.group;
  const int length = end - begin;
  float best = -INFINITY;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < u.lists * length; i += 32) {
    const int query = of.op.queries.raw()[u.first_query + i / length];
    best = fmaxf(best, of.op.scores.scores.raw()[(first + query) * of.op.scores.stride + begin + i % length]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) best = fmaxf(best, __shfl_xor_sync(~0U, best, step));
  return best;
}

/// The unit at a place of a list, or -1.
__device__ int unit_at(const UniteArguments& of, const Union& u, int list, int at, int units) {
  const std::int32_t set = u.first_list + list;
  const std::int32_t count = of.op.sets.count.raw()[set];
  if (count == kEverything) return at < units ? at : -1;
  const std::size_t from = static_cast<std::size_t>(set) * of.op.sets.capacity;
  const int slot = at * u.block;
  return slot < count ? of.op.sets.slots.raw()[from + slot] / u.block : -1;
}

__global__ void __launch_bounds__(kUniteThreads) unite_kernel(const __grid_constant__ UniteArguments of) {
  extern __shared__ std::uint64_t found[];  // score, then the lower unit first
  begin_launch();
  const Union u = of.op.unions.raw()[blockIdx.x];
  const int slots = seen_slots(of.cache, u.row, view_of(of.cache, u.row, u.head));
  const int units = (slots + u.block - 1) / u.block;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  float* const values =
      of.op.values.raw() + (static_cast<std::size_t>(u.row) * of.cache.kv_heads + u.head) * of.op.stride;
  std::uint8_t* const keeps = u.keeps < 0 ? nullptr : of.op.kept.raw() + u.keeps * of.op.stride;
  const std::uint8_t* const joins = u.joins < 0 ? nullptr : of.op.kept.raw() + u.joins * of.op.stride;
  const float* const heat = u.heat < 0 ? nullptr : of.op.heat.raw() + u.heat * of.op.stride;
  for (int unit = thread; unit < units; unit += kUniteThreads) {
    const bool taken = joins != nullptr && joins[unit] != 0;
    values[unit] = taken ? INFINITY : heat != nullptr ? heat[unit] : -INFINITY;
    if (keeps != nullptr) keeps[unit] = taken ? 1 : 0;
  }
  const int candidates = u.lists * u.wanted;
  for (int i = warp; i < of.room; i += kUniteThreads / 32) {
    std::uint64_t key = 0;
    const int unit = i < candidates ? unit_at(of, u, i / u.wanted, i % u.wanted, units) : -1;
    if (unit >= u.head_units && unit < u.tail_units) {
      const float score = best_score(of, u, unit * u.block, min(slots, (unit + 1) * u.block));
      key = std::uint64_t{order_of(score)} << 32 | (~0U - static_cast<unsigned>(unit));
    }
    if (thread % 32 == 0) found[i] = key;
  }
  __syncthreads();  // and the values are there
  sort_down<kUniteThreads>(found, of.room);
  // Equal keys are one unit. The first `room` of them are taken.
  const int each = (of.room + kUniteThreads - 1) / kUniteThreads;
  const int begin = min(of.room, thread * each), end = min(of.room, begin + each);
  const auto is_new = [&](int i) { return found[i] != 0 && (i == 0 || found[i] != found[i - 1]); };
  int own = 0;
  for (int i = begin; i < end; ++i) own += is_new(i) ? 1 : 0;
  int rank = block_sum_before<kUniteThreads>(own);
  for (int i = begin; i < end && rank < u.room; ++i) {
    if (!is_new(i)) continue;
    const unsigned unit = ~0U - static_cast<unsigned>(found[i]);
    values[unit] = INFINITY;
    if (keeps != nullptr) keeps[unit] = 1;
    ++rank;
  }
}

struct HeatArguments {
  Cache cache;
  HeatOp op;
  int parts = 1;  ///< blocks that share a row's units
};

/// The probabilities of up to 32 slots of a unit, a lane's own of each query head; what is asked for together comes
/// together.
__device__ float mass_of_slot(const HeatArguments& of, std::size_t first_query, int slot, bool there) {
  constexpr int kAtOnce = 4;
  float mass = 0;
#pragma unroll 1
  for (int j = 0; j < of.op.group; j += kAtOnce) {
    float scores[kAtOnce], lse[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const std::size_t query = first_query + j + k;
      const bool is = there && j + k < of.op.group;
      scores[k] = is ? of.op.scores.scores.raw()[query * of.op.scores.stride + slot] : -INFINITY;
      lse[k] = is ? of.op.scores.lse.raw()[query] : 0;
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) mass += expf(scores[k] - lse[k]);
  }
  return mass;
}

/// Lanes take the slots of a unit, those of a warp as many units as there is room for.
__global__ void __launch_bounds__(kHeatWarps * 32) heat_kernel(const __grid_constant__ HeatArguments of) {
  const HeatRow row = of.op.heats.raw()[static_cast<int>(blockIdx.x) / of.parts];
  const int part = static_cast<int>(blockIdx.x) % of.parts;
  const Read read = of.op.reads.raw()[static_cast<std::size_t>(row.row) * of.cache.kv_heads + row.head];
  const std::int32_t* list = nullptr;
  int entries = seen_slots(of.cache, row.row, view_of(of.cache, row.row, row.head));
  begin_launch();
  if (read.kind != Read::Kind::everything && read.kind != Read::Kind::sets) return;
  if (read.kind == Read::Kind::sets) {
    const std::int32_t count = of.op.sets.count.raw()[read.set];
    if (count != kEverything) {
      entries = count;
      list = of.op.sets.slots.raw() + static_cast<std::size_t>(read.set) * of.op.sets.capacity;
    }
  }
  int lanes = 32;
  while (lanes > 1 && lanes / 2 >= row.block) lanes /= 2;
  const int lane = static_cast<int>(threadIdx.x) % lanes, of_warp = static_cast<int>(threadIdx.x) % 32 / lanes;
  const int at_once = 32 / lanes, step = of.parts * kHeatWarps * at_once;
  const int units = (entries + row.block - 1) / row.block;
  const std::size_t head = static_cast<std::size_t>(row.row) * of.cache.kv_heads + row.head;
  const std::size_t place = (static_cast<std::size_t>(row.place) * of.cache.kv_heads + row.head) * of.op.stride;
  for (int first = (part * kHeatWarps + static_cast<int>(threadIdx.x) / 32) * at_once; first < units; first += step) {
    const int unit = first + of_warp, begin = unit * row.block, end = min(entries, begin + row.block);
    const bool writes = lane == 0 && unit < units;
    const std::size_t at = place + (writes ? (list == nullptr ? begin : list[begin]) / row.block : 0);
    const double before = writes ? of.op.sums.raw()[at] : 0;
    const std::int32_t readers = writes ? of.op.readers.raw()[at] : 0;
    float mass = 0;
    for (int i = begin + lane; i - lane < begin + row.block; i += lanes) {
      mass += mass_of_slot(of, head * of.op.group, i, i < end);
    }
    for (int other = lanes / 2; other > 0; other /= 2) mass += __shfl_xor_sync(~0U, mass, other);
    if (!writes) continue;
    of.op.sums.raw()[at] = before + static_cast<double>(mass / static_cast<float>(of.op.group));
    of.op.readers.raw()[at] = readers + 1;
  }
}

/// A thread for each unit of a piece's KV head.
__global__ void fold_kernel(const __grid_constant__ FoldOp of) {
  const int parts = (of.most + kThreads - 1) / kThreads;
  const int number = static_cast<int>(blockIdx.x) / parts;
  const HeatPiece piece = of.pieces.raw()[number / of.kv_heads];
  const int head = number % of.kv_heads;
  const int unit = static_cast<int>(blockIdx.x) % parts * kThreads + static_cast<int>(threadIdx.x);
  const int begin = unit * piece.block, end = min(piece.slots, begin + piece.block);
  if (begin >= end) return;
  const float* const from =
      of.columns.raw() + (static_cast<std::size_t>(piece.piece) * of.kv_heads + head) * of.column_stride;
  double sum = 0;
  for (int slot = begin; slot < end; ++slot) sum += static_cast<double>(from[slot]);
  of.sums.raw()[(static_cast<std::size_t>(piece.place) * of.kv_heads + head) * of.stride + unit] += sum;
}

__global__ void gains_kernel(const __grid_constant__ GainsOp of) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= of.places * of.stride) return;
  const std::size_t first = i / of.stride * of.kv_heads * of.stride + i % of.stride;
  double sum = 0;
  int readers = 0;
  for (int head = 0; head < of.kv_heads; ++head) {
    sum += of.sums.raw()[first + head * of.stride];
    readers += of.readers.raw()[first + head * of.stride];
  }
  of.gains.raw()[i] = readers > 0 ? sum / readers : sum;
}

__global__ void step_kernel(const __grid_constant__ StepHeatOp of) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= of.rows * of.stride) return;
  const HeatStep step = of.steps.raw()[i / of.stride];
  const auto unit = static_cast<int>(i % of.stride);
  float heat = of.heat.raw()[i];
  if (step.from >= 0 && unit < step.units) {
    const double gain = of.gains.raw()[step.from * of.gains_stride + unit];
    heat = __double2float_rn(__dadd_rn(__dmul_rn(step.decay, static_cast<double>(heat)), gain));
  }
  of.out.raw()[i] = heat;
}

__global__ void shift_kernel(const __grid_constant__ ShiftOp of) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i < of.rows * of.heads) of.out.raw()[i] = of.lse.raw()[i] - of.shift.raw()[i / of.heads];
}

/// Begins when the launch before has ended, or, where `early`, when that one lets it begin (order.cuh).
template <class Arguments>
void launch_plain(Stream& stream, void (*kernel)(Arguments), const Arguments& arguments, dim3 shape, int bytes,
                  bool early = false) {
  allow_shared(kernel, bytes);
  launch(kernel, arguments, shape, bytes, {launch_limits(stream), static_cast<cudaStream_t>(stream.raw()), early});
}

unsigned blocks_of(std::size_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

}  // namespace

void unite(Stream& stream, const UniteOp& op) {
  check(op.most <= kMostCandidates, "lists of a union that fit into shared memory");
  if (op.count == 0) return;
  UniteArguments of{cache_of(op.cache, op.rows), op};
  of.room = op.most == 0 ? 0 : static_cast<int>(std::bit_ceil(static_cast<unsigned>(op.most)));
  launch_plain(stream, unite_kernel, of, dim3(static_cast<unsigned>(op.count), kUniteThreads),
               of.room * static_cast<int>(sizeof(std::uint64_t)), true);
}

void add_heat(Stream& stream, const HeatOp& op) {
  if (op.count == 0 || op.most == 0) return;
  // Not so many that the blocks of the launch behind find no room beside them.
  const int most_parts = std::clamp(4 * stream.device().processors / op.count, 1, 64);
  HeatArguments of{cache_of(op.cache, op.rows), op};
  of.parts = std::clamp((op.most + kHeatWarps - 1) / kHeatWarps, 1, most_parts);
  launch_plain(stream, heat_kernel, of, dim3(static_cast<unsigned>(op.count * of.parts), kHeatWarps * 32), 0, true);
}

void fold_heat(Stream& stream, const FoldOp& op) {
  if (op.count == 0 || op.most == 0) return;
  const unsigned parts = blocks_of(static_cast<std::size_t>(op.most));
  launch_plain(stream, fold_kernel, op, dim3(static_cast<unsigned>(op.count * op.kv_heads) * parts, kThreads), 0);
}

void heat_gains(Stream& stream, const GainsOp& op) {
  if (op.places == 0) return;
  launch_plain(stream, gains_kernel, op, dim3(blocks_of(static_cast<std::size_t>(op.places) * op.stride), kThreads), 0);
}

void step_heat(Stream& stream, const StepHeatOp& op) {
  if (op.rows == 0) return;
  launch_plain(stream, step_kernel, op, dim3(blocks_of(static_cast<std::size_t>(op.rows) * op.stride), kThreads), 0);
}

void shift_rows(Stream& stream, const ShiftOp& op) {
  if (op.rows == 0) return;
  launch_plain(stream, shift_kernel, op, dim3(blocks_of(static_cast<std::size_t>(op.rows * op.heads)), kThreads), 0);
}

}  // namespace glimpse::kernels::cuda
