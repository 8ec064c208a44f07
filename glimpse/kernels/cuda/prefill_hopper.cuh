// Dense attention of a prompt's rows by warpgroup products. A block takes 128 (token, query head) rows of one KV head,
// 64 for each of two warpgroups, and goes over the keys that its last row sees, 160 at a time, from the last to the
// first, so that those that not every row sees come first. A third warpgroup brings K and V into shared memory. Scores
// and sums stay in registers. The softmax of some keys runs beside the products of the next ones with K and of the last
// ones with V, and while one warpgroup is at its softmax the other one has the tensor cores.
#pragma once

#include "glimpse/kernels/cuda/feed.cuh"
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/wgmma.cuh"

namespace glimpse::kernels::cuda {

template <int kDim>
struct HopperShape {
  static constexpr int kWorkers = 2;  ///< warpgroups
  static constexpr int kThreads = (kWorkers + 1) * 128;
  static constexpr int kRows = kWorkers * 64;
  static constexpr int kKeys = 160;
  static constexpr int kWords = kKeys / 32;
  static constexpr int kStages = 2;             ///< of K, and as many of V
  static constexpr int kBlocks = kDim / 64;     ///< of 64 dimensions
  static constexpr int kQueryBlock = 64 * 128;  ///< bytes of one
  static constexpr int kKeyBlock = kKeys * 128;
  static constexpr int kTileBytes = kKeyBlock * kBlocks;
  static constexpr int kQueryBytes = kRows * kDim * 2;
  static constexpr int kBytes = kQueryBytes + 2 * kStages * kTileBytes + 1024;  ///< and what aligning takes
};

/// Hands of a tile of K or V from those who bring it to those who multiply it, and back.
struct HopperTurns {
  std::uint64_t full[4], empty[4];
};

/// A bit for each key of a tile that is there.
template <int kWords>
struct HopperKeys {
  std::uint32_t words[kWords];
};

template <int kDim>
struct HopperHandover {
  HopperTurns keys, values;
  HopperKeys<HopperShape<kDim>::kWords> there[HopperShape<kDim>::kStages];
};

/// The warpgroup that brings K and V. A thread brings the same piece of every eighth row (or sixteenth), so that its
/// places in a tile are a constant distance apart.
template <int kDim>
class HopperFeed {
 public:
  using Shape = HopperShape<kDim>;
  using Handover = HopperHandover<kDim>;
  using Keys = HopperKeys<Shape::kWords>;

  __device__ HopperFeed(const HeadView& view, int seen, std::uint32_t tiles, Handover& handover)
      : view_(view),
        seen_(seen),
        handover_(handover),
        lane_(static_cast<int>(threadIdx.x) % 32),
        row_(static_cast<int>(threadIdx.x) % 128 / kPieces) {
    const int piece = static_cast<int>(threadIdx.x) % kPieces;
    to_ = tiles + piece / 8 * Shape::kKeyBlock + tile_offset(row_, piece % 8);
    k_ = view.k_plane + row_ * kDim * 2 + piece * 16;
    v_ = view.v_plane + row_ * kDim * 2 + piece * 16;
  }

  __device__ void run(int tiles) {
    int page = page_of(tiles - 1);
    for (int tile = tiles - 1, turn = 0; tile >= 0; --tile, ++turn) {
      const int stage = turn % Shape::kStages;
      const int parity = turn / Shape::kStages % 2 ^ 1;
      const int next = page_of(tile - 1);
      if (view_.positions == nullptr && (tile + 1) * Shape::kKeys <= seen_) {
        bring<true>(page, stage, parity, all());
      } else {
        bring<false>(page, stage, parity, there_in(tile));
      }
      page = next;
    }
    finish();
  }

 private:
  static constexpr int kPieces = kDim / 8;
  static constexpr int kRowsAtOnce = 128 / kPieces;
  static constexpr int kPageBytes = kPageTokens * kDim * 2;
  static constexpr int kPages = Shape::kKeys / kPageTokens;

  /// Lane i has page i of a tile.
  __device__ unsigned page_of(int tile) const {
    const int page = tile * kPages + lane_;
    if (tile < 0 || lane_ >= kPages || page * kPageTokens >= seen_) return 0;
    return view_.pages[page];
  }
  static __device__ Keys all() {
    Keys there;
#pragma unroll
    for (std::uint32_t& word : there.words) word = ~0U;
    return there;
  }
  /// What slots of a tile are in use and not behind what the last row sees.
  __device__ Keys there_in(int tile) const {
    Keys there;
#pragma unroll
    for (int i = 0; i < Shape::kWords; ++i) {
      const int slot = tile * Shape::kKeys + i * 32 + lane_;
      there.words[i] = __ballot_sync(~0U, slot < seen_ && (view_.positions == nullptr || view_.positions[slot] >= 0));
    }
    return there;
  }
  template <bool kWhole>
  __device__ void bring(unsigned page, int stage, int parity, const Keys& there) {
    const int at = stage * Shape::kTileBytes;
    take(shared_address(&handover_.keys.empty[stage]), parity);
    if (threadIdx.x % 128 == 0) handover_.there[stage] = there;
    copy<kWhole>(k_, at, page, there);
    hand_over(shared_address(&handover_.keys.full[stage]));
    take(shared_address(&handover_.values.empty[stage]), parity);
    copy<kWhole>(v_, at + Shape::kStages * Shape::kTileBytes, page, there);
    hand_over(shared_address(&handover_.values.full[stage]));
  }
  template <bool kWhole>
  __device__ void copy(const std::byte* from, int at, unsigned page, const Keys& there) const {
#pragma unroll
    for (int i = 0; i < kPages; ++i) {
      const std::byte* const rows = from + static_cast<std::size_t>(__shfl_sync(~0U, page, i)) * kPageBytes;
#pragma unroll
      for (int row = 0; row < kPageTokens; row += kRowsAtOnce) {
        const int slot = i * kPageTokens + row;
        const bool present = kWhole || (there.words[slot / 32] >> (slot % 32 + row_) & 1U) != 0;
        copy_16_bytes<false>(to_ + at + slot * 128, rows + row * kDim * 2, present);
      }
    }
    close_copies();
  }
  /// Waits until a place is free. What is under way is handed over before, if that takes long.
  __device__ void take(std::uint32_t empty, int parity) {
    if (__all_sync(~0U, is_over(empty, parity))) return;
    finish();
    wait_turn(empty, parity);
  }
  /// Hands over what was asked for before this.
  __device__ void hand_over(std::uint32_t full) {
    if (pending_ != 0) {
      wait_copies<1>();
      say();
    }
    pending_ = full;
  }
  __device__ void finish() {
    if (pending_ == 0) return;
    wait_copies<0>();
    say();
    pending_ = 0;
  }
  __device__ void say() const {
    show_to_products();
    __syncwarp();
    if (lane_ == 0) arrive(pending_);
  }

  const HeadView& view_;
  int seen_;
  Handover& handover_;
  int lane_, row_;
  const std::byte *k_, *v_;
  std::uint32_t to_, pending_ = 0;
};

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

  /// Goes over `tiles` tiles of keys, of which the first `whole` are seen by all rows and have no freed slot. This
  /// thread's rows see sees[0] and sees[1] slots.
  __device__ void run(int tiles, int whole, const int (&sees)[2]) {
    wait_turn(shared_address(&handover_.keys.full[0]), 0);
    begin_products();
    multiply_keys(0);
    wait_products<0>();
    hold(scores_);
    const Keys there = there_in(0);
    give_back(shared_address(&handover_.keys.empty[0]));
    leave_out(tiles - 1, sees, there);
    float shrink[2];
    weigh(shrink);
    pack();
    int turn = 1;
    for (; turn < tiles && tiles - 1 - turn >= whole; ++turn) step<true>(turn, tiles - 1 - turn, sees);
    for (; turn < tiles; ++turn) step<false>(turn, tiles - 1 - turn, sees);
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

template <class T, int kDim>
__global__ void __launch_bounds__(HopperShape<kDim>::kThreads, 1)
    prefill_hopper_kernel(const __grid_constant__ PrefillArguments of) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = HopperShape<kDim>;
  __shared__ HopperHandover<kDim> handover;
  extern __shared__ uint4 memory[];
  const std::uint32_t base = (shared_address(memory) + 1023U) & ~1023U;
  const std::uint32_t keys = base + Shape::kQueryBytes;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      make_turns(shared_address(&handover.keys.full[i]), 4);
      make_turns(shared_address(&handover.values.full[i]), 4);
      make_turns(shared_address(&handover.keys.empty[i]), Shape::kWorkers * 4);
      make_turns(shared_address(&handover.values.empty[i]), Shape::kWorkers * 4);
    }
  }
  const int tiles = (of.prompt.rows * of.group + Shape::kRows - 1) / Shape::kRows;
  const int head = static_cast<int>(blockIdx.x) % of.cache.kv_heads;
  const int tile = tiles - 1 - static_cast<int>(blockIdx.x) / of.cache.kv_heads;  // those that see most first
  const int first = tile * Shape::kRows;
  const int count = min(Shape::kRows, of.prompt.rows * of.group - first);
  __syncthreads();
  cudaGridDependencySynchronize();
  const HeadView view = of.cache.views[static_cast<std::size_t>(of.prompt.sequence) * of.cache.kv_heads + head];
  const int before = view.slots - of.prompt.behind + 1;  // that the first row sees
  const int least = before + first / of.group;           // that the first row of the tile sees
  const int seen = before + (first + count - 1) / of.group;
  const int key_tiles = (seen + Shape::kKeys - 1) / Shape::kKeys;
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group == Shape::kWorkers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    HopperFeed<kDim>(view, seen, keys, handover).run(key_tiles);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const std::size_t heads = static_cast<std::size_t>(of.cache.kv_heads) * of.group;
    const auto row_at = [&](int row) {  // of [R, H]
      const int token = of.prompt.row + (first + row) / of.group;
      return token * heads + static_cast<std::size_t>(head) * of.group + (first + row) % of.group;
    };
    const std::uint32_t queries = base + group * Shape::kBlocks * Shape::kQueryBlock;
    for (int i = static_cast<int>(threadIdx.x) % 128; i < 64 * (kDim / 8); i += 128) {
      const int row = i / (kDim / 8);
      const int piece = i % (kDim / 8);
      float4 low{}, high{};
      if (group * 64 + row < count) {
        const auto* const from = reinterpret_cast<const float4*>(of.q + row_at(group * 64 + row) * kDim + piece * 8);
        low = from[0], high = from[1];
      }
      // The largest score is looked for before the scale: a negative one turns the queries.
      const float sign = of.scale < 0 ? -1.0F : 1.0F;
      store_16_bytes(queries + piece / 8 * Shape::kQueryBlock + tile_offset(row, piece % 8),
                     {both<T>(low.x * sign, low.y * sign), both<T>(low.z * sign, low.w * sign),
                      both<T>(high.x * sign, high.y * sign), both<T>(high.z * sign, high.w * sign)});
    }
    show_to_products();
    meet(3 + group, 128);
    if (group == 1) pass_on(1, Shape::kWorkers * 128);
    HopperRows<T, kDim> rows(queries, keys, handover, fabsf(of.scale), group);
    const int own = group * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    const int sees[2] = {min(seen, before + (first + own) / of.group),
                         min(seen, before + (first + own + 8) / of.group)};
    rows.run(key_tiles, view.positions == nullptr ? least / Shape::kKeys : 0, sees);
    if (group == 0) meet(1, Shape::kWorkers * 128);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = own + r * 8;
      if (row >= count) continue;
      const std::size_t at = row_at(row);
      rows.write(r, of.out + at * kDim, of.lse == nullptr ? nullptr : of.lse + at);
    }
  }
#endif
}

template <class T, int kDim>
void launch_prefill_hopper_as(const PrefillArguments& of, const Limits& limits, cudaStream_t stream) {
  using Shape = HopperShape<kDim>;
  auto* const kernel = prefill_hopper_kernel<T, kDim>;
  allow_shared(kernel, Shape::kBytes);
  const int tiles = (of.prompt.rows * of.group + Shape::kRows - 1) / Shape::kRows;
  launch(kernel, of, dim3(tiles * of.cache.kv_heads, Shape::kThreads), Shape::kBytes, {limits, stream});
}

}  // namespace glimpse::kernels::cuda
