// What the block of prefill_hopper.cuh is, and its warpgroup that brings K and V into shared memory.
#pragma once

#include "glimpse/kernels/cuda/feed.cuh"
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

  /// Brings tiles [begin, end), the last one first.
  __device__ void run(int begin, int end) {
    int page = page_of(end - 1);
    for (int tile = end - 1, turn = 0; tile >= begin; --tile, ++turn) {
      const int stage = turn % Shape::kStages;
      const int parity = turn / Shape::kStages % 2 ^ 1;
      const int next = page_of(tile - 1);
      if (view_.positions == nullptr && (tile + 1) * Shape::kKeys <= seen_) {
        bring(stage, parity, all(), [&](auto from, int at, const Keys& there) { copy<true>(from, at, page, there); });
      } else {
        bring(stage, parity, there_in(tile),
              [&](auto from, int at, const Keys& there) { copy<false>(from, at, page, there); });
      }
      page = next;
    }
    finish();
  }

 protected:
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
  template <class Copy>
  __device__ void bring(int stage, int parity, const Keys& there, const Copy& copy) {
    const int at = stage * Shape::kTileBytes;
    take(shared_address(&handover_.keys.empty[stage]), parity);
    if (threadIdx.x % 128 == 0) handover_.there[stage] = there;
    copy(k_, at, there);
    hand_over(shared_address(&handover_.keys.full[stage]));
    take(shared_address(&handover_.values.empty[stage]), parity);
    copy(v_, at + Shape::kStages * Shape::kTileBytes, there);
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

/// The same for keys in any order. Lane i of a warp has the rows of entries i, 32 + i ... of a tile in the planes.
template <int kDim, class Order>
class HopperGather : public HopperFeed<kDim> {
  using Feed = HopperFeed<kDim>;

 public:
  using Shape = typename Feed::Shape;
  using Keys = typename Feed::Keys;

  __device__ HopperGather(const HeadView& view, const Order& order, int seen, std::uint32_t tiles,
                          typename Feed::Handover& handover)
      : Feed(view, seen, tiles, handover), order_(order) {
    this->k_ -= this->row_ * kDim * 2;  // rows do not lie one behind the other
    this->v_ -= this->row_ * kDim * 2;
  }

  __device__ void run(int begin, int end) {
    std::uint32_t rows[Shape::kWords];
    Keys there = find(end - 1, rows);
    for (int tile = end - 1, turn = 0; tile >= begin; --tile, ++turn) {
      std::uint32_t next[Shape::kWords];
      const Keys then = find(tile - 1, next);
      this->bring(turn % Shape::kStages, turn / Shape::kStages % 2 ^ 1, there,
                  [&](const std::byte* from, int at, const Keys& in) { copy(from, at, rows, in); });
      there = then;
#pragma unroll
      for (int i = 0; i < Shape::kWords; ++i) rows[i] = next[i];
    }
    this->finish();
  }

 private:
  __device__ Keys find(int tile, std::uint32_t (&rows)[Shape::kWords]) const {
    Keys there;
#pragma unroll
    for (int i = 0; i < Shape::kWords; ++i) {
      const int entry = tile * Shape::kKeys + i * 32 + this->lane_;
      bool in = entry >= 0 && entry < this->seen_;
      rows[i] = 0;
      if (in) {
        const int slot = order_.slot(entry);
        rows[i] = this->view_.pages[slot >> kPageShift] * kPageTokens + (slot & (kPageTokens - 1));
        in = this->view_.positions == nullptr || this->view_.positions[slot] >= 0;
      }
      there.words[i] = __ballot_sync(~0U, in);
    }
    return there;
  }
  __device__ void copy(const std::byte* from, int at, const std::uint32_t (&rows)[Shape::kWords],
                       const Keys& there) const {
#pragma unroll
    for (int i = 0; i < Shape::kKeys; i += Feed::kRowsAtOnce) {
      const int lane = i % 32 + this->row_;
      const std::uint32_t row = __shfl_sync(~0U, rows[i / 32], lane);
      const bool present = (there.words[i / 32] >> lane & 1U) != 0;
      copy_16_bytes<false>(this->to_ + at + i * 128, from + static_cast<std::size_t>(row) * (kDim * 2), present);
    }
    close_copies();
  }

  Order order_;
};

}  // namespace glimpse::kernels::cuda
