// A block of prefill_hopper.cuh that reads keys alone: four stages of K, where the other has two of K and two of V.
#pragma once

#include "glimpse/kernels/cuda/prefill_hopper.cuh"

namespace glimpse::kernels::cuda {

template <int kDim>
struct KeysShape {
  using Hopper = HopperShape<kDim>;
  static constexpr int kStages = 4;                   ///< of K: where K and V lie in prefill's
  static constexpr int kColumns = Hopper::kKeys / 4;  ///< of a thread: two of each eight
  static_assert(2 * Hopper::kStages == kStages && Hopper::kKeys == 160);
};

/// Brings the keys of a head, the first tile first.
template <int kDim>
class KeysFeed : public HopperFeed<kDim> {
  using Feed = HopperFeed<kDim>;

 public:
  using Feed::Feed;

  __device__ void run(int end) {
    int page = this->page_of(0);
    for (int tile = 0; tile < end; ++tile) {
      const int stage = tile % KeysShape<kDim>::kStages;
      const int at = stage * Feed::Shape::kTileBytes;
      // What lies behind the last slot is zeros.
      const bool whole = (tile + 1) * Feed::Shape::kKeys <= this->seen_;
      const int next = tile + 1 < end ? this->page_of(tile + 1) : 0;
      this->take(shared_address(&this->handover_.keys.empty[stage]), tile / KeysShape<kDim>::kStages % 2 ^ 1);
      if (whole) {
        this->template copy<true>(this->k_, at, page, Feed::all());
      } else {
        this->template copy<false>(this->k_, at, page, this->there_in(tile));
      }
      this->hand_over(shared_address(&this->handover_.keys.full[stage]));
      page = next;
    }
    this->finish();
  }
};

/// One thread's part of a block's beginning.
template <int kDim>
__device__ inline void make_keys_handover(HopperHandover<kDim>& handover) {
  for (int i = 0; i < KeysShape<kDim>::kStages; ++i) {
    make_turns(shared_address(&handover.keys.full[i]), 4);
    make_turns(shared_address(&handover.keys.empty[i]), HopperShape<kDim>::kWorkers * 4);
  }
}

/// The products of one warpgroup's 64 queries with keys. What is under way when a turn of a loop ends would be waited
/// for there: take two tiles a turn.
template <class T, int kDim>
class KeyProducts {
 public:
  using Shape = HopperShape<kDim>;
  static constexpr int kScores = Shape::kKeys / 2;  ///< of a thread

  __device__ KeyProducts(std::uint32_t queries, std::uint32_t tiles, HopperHandover<kDim>& handover)
      : q_(operand(queries, 0)), k_(operand(tiles, Shape::kKeyBlock)), handover_(handover) {}

  __device__ void wait_for(int tile) const {
    wait_turn(shared_address(&handover_.keys.full[tile % KeysShape<kDim>::kStages]),
              tile / KeysShape<kDim>::kStages % 2);
  }
  __device__ void multiply(int tile, float (&scores)[kScores]) const {
    const std::uint64_t k = k_ + tile % KeysShape<kDim>::kStages * (Shape::kTileBytes / 16);
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      multiply_rows<T>(scores, q_ + (i / 4 * Shape::kQueryBlock + i % 4 * 32) / 16,
                       k + (i / 4 * Shape::kKeyBlock + i % 4 * 32) / 16, i != 0);
    }
    close_products();
  }

  __device__ void give_back(int tile) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(shared_address(&handover_.keys.empty[tile % KeysShape<kDim>::kStages]));
  }

 private:
  std::uint64_t q_, k_;
  HopperHandover<kDim>& handover_;
};

}  // namespace glimpse::kernels::cuda
