// Dense attention of a prompt's rows by warpgroup products. A block takes 128 (token, query head) rows of one KV head,
// 64 for each of two warpgroups, and goes over the keys that its last row sees, 160 at a time, from the last to the
// first, so that those that not every row sees come first. A third warpgroup brings K and V into shared memory. Scores
// and sums stay in registers. The softmax of some keys runs beside the products of the next ones with K and of the last
// ones with V, and while one warpgroup is at its softmax the other one has the tensor cores.
#pragma once

#include "glimpse/kernels/cuda/hopper_feed.cuh"
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/prefill_hopper.h"

namespace glimpse::kernels::cuda {

/// One warpgroup's 64 rows.
template <class T, int kDim>
class HopperRows {
 public:
  using Shape = HopperShape<kDim>;
  using Keys = HopperKeys<Shape::kWords>;

  __device__ HopperRows(std::uint32_t queries, std::uint32_t tiles, HopperHandover<kDim>& handover, float scale,
                        int worker)
      : q_(operand(queries, 0)),
        k_(operand(tiles, Shape::kKeyBlock)),
        v_(operand(tiles + Shape::kStages * Shape::kTileBytes, Shape::kKeyBlock)),
        handover_(handover),
        scale_(scale),
        worker_(worker),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  /// Goes over tiles [begin, end) of keys; those before `whole` are seen by all rows and have no freed slot. This
  /// thread's rows see sees[0] and sees[1] slots.
  __device__ void run(int begin, int end, int whole, const int (&sees)[2]) {
    wait_turn(shared_address(&handover_.keys.full[0]), 0);
    begin_products();
    multiply_keys(0);
    wait_products<0>();
    hold(scores_);
    const Keys there = there_in(0);
    give_back(shared_address(&handover_.keys.empty[0]));
    leave_out(end - 1, sees, there);
    float shrink[2];
    weigh(shrink);
    pack();
    int turn = 1;
    for (; turn < end - begin && end - 1 - turn >= whole; ++turn) step<true>(turn, end - 1 - turn, sees);
    for (; turn < end - begin; ++turn) step<false>(turn, end - 1 - turn, sees);
    const int stage = (turn - 1) % Shape::kStages;
    wait_turn(shared_address(&handover_.values.full[stage]), (turn - 1) / Shape::kStages % 2);
    begin_products();
    multiply_values(stage);
    wait_products<0>();
    hold(sums_);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total_[r] += __shfl_xor_sync(~0U, total_[r], 1);
      total_[r] += __shfl_xor_sync(~0U, total_[r], 2);
    }
  }

  __device__ void write(int r, float* out, float* lse) const {
    const float share = total_[r] > 0 ? 1 / total_[r] : 0;
    if (lse != nullptr && lane_ % 4 == 0) {
      *lse = total_[r] > 0 ? (largest_[r] * scale_ + log2f(total_[r])) * kLogOf2 : -INFINITY;
    }
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      *reinterpret_cast<float2*>(out + j * 8 + lane_ % 4 * 2) =
          make_float2(sums_[j * 4 + r * 2] * share, sums_[j * 4 + r * 2 + 1] * share);
    }
  }
  /// A row's part of a result, for add_parts: its sums, then at `totals` the largest score and the sum of weights.
  __device__ void leave(int r, float* sums, float2* totals) const {
    if (lane_ % 4 == 0) *totals = make_float2(largest_[r] * scale_, total_[r]);
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      *reinterpret_cast<float2*>(sums + j * 8 + lane_ % 4 * 2) =
          make_float2(sums_[j * 4 + r * 2], sums_[j * 4 + r * 2 + 1]);
    }
  }

 private:
  template <bool kSome>
  __device__ void step(int turn, int tile, const int (&sees)[2]) {
    const int stage = turn % Shape::kStages;
    const int before = (turn - 1) % Shape::kStages;
    wait_turn(shared_address(&handover_.keys.full[stage]), turn / Shape::kStages % 2);
    wait_turn(shared_address(&handover_.values.full[before]), (turn - 1) / Shape::kStages % 2);
    meet(1 + worker_, Shape::kWorkers * 128);
    begin_products();
    multiply_keys(stage);
    multiply_values(before);
    pass_on(2 - worker_, Shape::kWorkers * 128);
    wait_products<1>();
    hold(scores_);
    Keys there{};
    if constexpr (kSome) there = there_in(stage);
    give_back(shared_address(&handover_.keys.empty[stage]));
    if constexpr (kSome) leave_out(tile, sees, there);
    float shrink[2];
    weigh(shrink);
    wait_products<0>();
    hold(sums_);
    hold(weights_);
    give_back(shared_address(&handover_.values.empty[before]));
    pack();
    if (__any_sync(~0U, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) sums_[i] *= shrink[i / 2 % 2];
    }
  }
  __device__ void multiply_keys(int stage) {
    const std::uint64_t k = k_ + stage * (Shape::kTileBytes / 16);
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      multiply_rows<T>(scores_, q_ + (i / 4 * Shape::kQueryBlock + i % 4 * 32) / 16,
                       k + (i / 4 * Shape::kKeyBlock + i % 4 * 32) / 16, i != 0);
    }
    close_products();
  }
  __device__ void multiply_values(int stage) {
    const std::uint64_t v = v_ + stage * (Shape::kTileBytes / 16);
#pragma unroll
    for (int i = 0; i < Shape::kKeys / 16; ++i) multiply_columns<T>(sums_, weights_[i], v + i * (16 * 128 / 16));
    close_products();
  }
  __device__ void give_back(std::uint32_t empty) const {
    __syncwarp();
    if (lane_ == 0) arrive(empty);
  }
  /// Read by the lane that gives the tile back.
  __device__ Keys there_in(int stage) const {
    Keys there;
#pragma unroll
    for (int i = 0; i < Shape::kWords; ++i) {
      std::uint32_t word = 0;
      if (lane_ == 0) word = handover_.there[stage].words[i];
      there.words[i] = __shfl_sync(~0U, word, 0);
    }
    return there;
  }
  /// Scores of keys that a row does not see, or that are not there, become -inf.
  __device__ void leave_out(int tile, const int (&sees)[2], const Keys& there) {
    const int column = lane_ % 4 * 2;
    const int left[2] = {sees[0] - tile * Shape::kKeys - column, sees[1] - tile * Shape::kKeys - column};
#pragma unroll
    for (int i = 0; i < Shape::kKeys / 2; ++i) {
      const int key = i / 4 * 8 + i % 2;
      const bool seen = key < left[i / 2 % 2] && (there.words[key / 32] >> column & 1U << key % 32) != 0;
      if (!seen) scores_[i] = -INFINITY;
    }
  }
  /// Scores become weights, and `shrink` what those before are worth now.
  __device__ void weigh(float (&shrink)[2]) {
    float base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = largest_[r];
#pragma unroll
      for (int i = 0; i < Shape::kKeys / 8; ++i)
        top = fmaxf(top, fmaxf(scores_[i * 4 + r * 2], scores_[i * 4 + r * 2 + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0U, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0U, top, 2));
      base[r] = or_zero(top) * scale_;
      shrink[r] = exp2_of(largest_[r] * scale_ - base[r]);
      largest_[r] = top;
      total_[r] *= shrink[r];
    }
#pragma unroll
    for (int i = 0; i < Shape::kKeys / 2; ++i) {
      const int r = i / 2 % 2;
      scores_[i] = exp2_of(fmaf(scores_[i], scale_, -base[r]));
      total_[r] += scores_[i];
    }
  }
  __device__ void pack() {
#pragma unroll
    for (int i = 0; i < Shape::kKeys / 4; ++i) {
      weights_[i / 4][i % 4] = both<T>(scores_[i * 2], scores_[i * 2 + 1]);
    }
  }

  std::uint64_t q_, k_, v_;
  HopperHandover<kDim>& handover_;
  float scale_;
  int worker_, lane_;
  float scores_[Shape::kKeys / 2];
  float sums_[kDim / 2] = {};
  std::uint32_t weights_[Shape::kKeys / 16][4];
  float largest_[2] = {-INFINITY, -INFINITY}, total_[2] = {};
};

/// One thread's part of a block's beginning.
template <int kDim>
__device__ inline void make_handover(HopperHandover<kDim>& handover) {
  using Shape = HopperShape<kDim>;
  for (int i = 0; i < Shape::kStages; ++i) {
    make_turns(shared_address(&handover.keys.full[i]), 4);
    make_turns(shared_address(&handover.values.full[i]), 4);
    make_turns(shared_address(&handover.keys.empty[i]), Shape::kWorkers * 4);
    make_turns(shared_address(&handover.values.empty[i]), Shape::kWorkers * 4);
  }
}

/// Brings a warpgroup's 64 queries, of a block's `count` rows, to shared memory. The largest score is looked for before
/// the scale: a negative one turns the queries.
template <class T, int kDim, class RowAt>
__device__ inline void bring_queries(const PrefillArguments& of, int group, int count, std::uint32_t queries,
                                     const RowAt& row_at) {
  const float sign = of.scale < 0 ? -1.0F : 1.0F;
  for (int i = static_cast<int>(threadIdx.x) % 128; i < 64 * (kDim / 8); i += 128) {
    const int row = i / (kDim / 8);
    const int piece = i % (kDim / 8);
    float4 low{}, high{};
    if (group * 64 + row < count) {
      const auto* const from = reinterpret_cast<const float4*>(of.q + row_at(group * 64 + row) * kDim + piece * 8);
      low = from[0], high = from[1];
    }
    store_16_bytes(queries + piece / 8 * HopperShape<kDim>::kQueryBlock + tile_offset(row, piece % 8),
                   {both<T>(low.x * sign, low.y * sign), both<T>(low.z * sign, low.w * sign),
                    both<T>(high.x * sign, high.y * sign), both<T>(high.z * sign, high.w * sign)});
  }
  show_to_products();
}

/// The parts that blocks left of a tile of rows: sums [part, row, d] and [part, row] of largest scores and weights.
template <int kDim>
struct HopperParts {
  static constexpr int kRows = HopperShape<kDim>::kRows;
  float* sums;
  float2* totals;
  int count;

  /// Row `row` of all of them, in their order: dimensions [at, at + 4), and the log-sum-exp.
  __device__ float4 add(int row, int at, float& lse) const {
    float top = -INFINITY;
    for (int i = 0; i < count; ++i) top = fmaxf(top, __ldcg(totals + i * kRows + row).x);
    float4 sum{};
    float total = 0;
    for (int i = 0; i < count; ++i) {
      const float2 of = __ldcg(totals + i * kRows + row);
      const float worth = exp2_of(of.x - or_zero(top));
      const float4 part = __ldcg(reinterpret_cast<const float4*>(sums + (i * kRows + row) * kDim + at));
      total += worth * of.y;
      sum.x += worth * part.x, sum.y += worth * part.y, sum.z += worth * part.z, sum.w += worth * part.w;
    }
    const float share = total > 0 ? 1 / total : 0;
    lse = total > 0 ? (top + log2f(total)) * kLogOf2 : -INFINITY;
    return {sum.x * share, sum.y * share, sum.z * share, sum.w * share};
  }
};

template <class T, int kDim>
__global__ void __launch_bounds__(HopperShape<kDim>::kThreads, 1)
    prefill_hopper_kernel(const __grid_constant__ HopperArguments arguments) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = HopperShape<kDim>;
  const PrefillArguments& of = arguments.prefill;
  __shared__ HopperHandover<kDim> handover;
  extern __shared__ uint4 memory[];
  const std::uint32_t base = (shared_address(memory) + 1023U) & ~1023U;
  const std::uint32_t keys = base + Shape::kQueryBytes;
  if (threadIdx.x == 0) make_handover<kDim>(handover);
  const int tiles = (of.prompt.rows * of.group + Shape::kRows - 1) / Shape::kRows;
  const int of_rows = static_cast<int>(blockIdx.x) / arguments.splits;  // those that see most first
  const int part = static_cast<int>(blockIdx.x) % arguments.splits;
  const int head = of_rows % of.cache.kv_heads;
  const int number = of_rows / of.cache.kv_heads;
  const int first = (tiles - 1 - number % tiles) * Shape::kRows;
  __syncthreads();
  cudaGridDependencySynchronize();
  const PromptRows prompt = of.pieces == nullptr ? of.prompt : of.pieces[number / tiles];
  const int count = min(Shape::kRows, prompt.rows * of.group - first);
  if (count <= 0) return;
  const HeadView view = of.cache.views[static_cast<std::size_t>(prompt.sequence) * of.cache.kv_heads + head];
  const int before = view.slots - prompt.behind + 1;  // that the first row sees
  const int least = before + first / of.group;        // that the first row of the tile sees
  const int seen = before + (first + count - 1) / of.group;
  const int key_tiles = (seen + Shape::kKeys - 1) / Shape::kKeys;
  const int each = max((key_tiles + arguments.splits - 1) / arguments.splits, min(key_tiles, kHopperTiles));
  const int parts = (key_tiles + each - 1) / each;
  const int begin = part * each;
  const int end = min(key_tiles, begin + each);
  if (begin >= end) return;
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group == Shape::kWorkers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    HopperFeed<kDim>(view, seen, keys, handover).run(begin, end);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const std::size_t heads = static_cast<std::size_t>(of.cache.kv_heads) * of.group;
    const auto row_at = [&](int row) {  // of [R, H]
      const int token = prompt.row + (first + row) / of.group;
      return token * heads + static_cast<std::size_t>(head) * of.group + (first + row) % of.group;
    };
    const std::uint32_t queries = base + group * Shape::kBlocks * Shape::kQueryBlock;
    bring_queries<T, kDim>(of, group, count, queries, row_at);
    meet(3 + group, 128);
    if (group == 1) pass_on(1, Shape::kWorkers * 128);
    HopperRows<T, kDim> rows(queries, keys, handover, fabsf(of.scale), group);
    const int own = group * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    const int sees[2] = {min(seen, before + (first + own) / of.group),
                         min(seen, before + (first + own + 8) / of.group)};
    rows.run(begin, end, view.positions == nullptr ? least / Shape::kKeys : 0, sees);
    if (group == 0) meet(1, Shape::kWorkers * 128);
    HopperParts<kDim> all{.sums = arguments.partials.values +
                                  static_cast<std::size_t>(of_rows) * arguments.splits * Shape::kRows * (kDim + 2),
                          .totals = nullptr,
                          .count = parts};
    all.totals = reinterpret_cast<float2*>(all.sums + arguments.splits * Shape::kRows * kDim);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = own + r * 8;
      if (row >= count) continue;
      if (parts > 1) {
        const int at = part * Shape::kRows + row;
        rows.leave(r, all.sums + at * kDim, all.totals + at);
      } else {
        const std::size_t at = row_at(row);
        rows.write(r, of.out + at * kDim, of.lse == nullptr ? nullptr : of.lse + at);
      }
    }
    if (parts == 1) return;
    __threadfence();
    meet(5, Shape::kWorkers * 128);
    bool last = false;
    if (threadIdx.x == 0)
      last = atomicAdd(arguments.partials.arrived + of_rows, 1U) == static_cast<unsigned>(parts - 1);
    if (!any_of(5, Shape::kWorkers * 128, last)) return;
    __threadfence();
    if (threadIdx.x == 0) arguments.partials.arrived[of_rows] = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count * (kDim / 4); i += Shape::kWorkers * 128) {
      const std::size_t at = row_at(i / (kDim / 4));
      float lse = 0;
      *reinterpret_cast<float4*>(of.out + at * kDim + i % (kDim / 4) * 4) =
          all.add(i / (kDim / 4), i % (kDim / 4) * 4, lse);
      if (of.lse != nullptr && i % (kDim / 4) == 0) of.lse[at] = lse;
    }
  }
#endif
}

}  // namespace glimpse::kernels::cuda
