// The kernel of wide_rows.h for quantised weights, for code for compute capability 9.0a. A unit is 256 outputs by a
// super block of inputs. A warpgroup brings its super blocks, as they lie in memory, and the inputs; four multiply 64
// outputs each by all rows (wgmma). A warp has a block row: its threads make bf16 of the integers and scales that they
// hold, which is their part of the left side of a product. The inputs change places for that on their way
// (packed_place).
#pragma once

#include "glimpse/kernels/cuda/feed.cuh"
#include "glimpse/kernels/cuda/packed.cuh"
#include "glimpse/kernels/cuda/wide_packed.h"

namespace glimpse::kernels::cuda {

inline constexpr int kPackedWorkerThreads = kPackedWorkers * 128;
inline constexpr int kPackedThreads = kPackedWorkerThreads + 128;
inline constexpr int kPackedBlockRows = kPackedWorkers * 4;  ///< of a unit

template <Packing kPacking, int kRows>
struct PackedShape {
  static constexpr int kSuperBytes = SuperBytes<kPacking>::kAll;
  static constexpr int kBlockBytes = kRows * 128;  ///< of 64 inputs of all rows
  static constexpr int kInputBytes = kPackedInputs / 64 * kBlockBytes;
  static constexpr int kStageBytes = (kInputBytes + kPackedBlockRows * kSuperBytes + 1023) / 1024 * 1024;
  static constexpr int kFit = (224 << 10) / kStageBytes;
  static constexpr int kStages = kFit < 8 ? kFit : 8;
  using Turns = WideTurns<kStages>;
  static constexpr int kBytes = kStages * kStageBytes + 1024;  ///< and what aligning takes
  static_assert(kStages > 1);
};

/// Asks for `bytes` at `from`, which join a barrier's turn.
__device__ inline void copy_bulk(std::uint32_t to, const void* from, int bytes, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(read_once())
      : "memory");
}
/// Arrives when this thread's copies by cp.async are there.
__device__ inline void arrive_behind_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Where two neighbouring inputs of 64 go, in pairs: as the columns of a product, in which a thread's weights lie.
template <Packing kPacking>
__device__ constexpr int pair_place(int pair) {
  constexpr int kOfStep = 8;  // pairs
  const PackedPlace at = packed_place(kPacking.scales, 0, pair * 2);
  return at.step * kOfStep + at.pair / 2 * 4 + at.lane;
}

/// The warpgroup that brings.
template <Packing kPacking, int kRows>
class PackedFeed {
  using Shape = PackedShape<kPacking, kRows>;

 public:
  __device__ PackedFeed(const WideArguments& of, int begin, int end, std::uint32_t memory, typename Shape::Turns& turns)
      : of_(of), begin_(begin), end_(end), memory_(memory), turns_(turns) {
    const int lane = static_cast<int>(threadIdx.x) % 32, place = pair_place<kPacking>(lane);
    piece_ = place / 4;
    word_ = place % 4 * 4;
  }

  /// Weights never change: the first are on their way while the launch before ends.
  __device__ void ask_for_first_weights() const {
    if (threadIdx.x / 32 != kPackedWorkerThreads / 32) return;
    for (int unit = begin_; unit < min(end_, begin_ + Shape::kStages); ++unit) ask_for_weights(unit);
  }
  __device__ void run() const {
    int super = begin_ % of_.chunks;
    for (int unit = begin_; unit < end_; ++unit) {
      const int turn = unit - begin_, stage = turn % Shape::kStages;
      if (turn >= Shape::kStages) {
        wait_turn(shared_address(&turns_.empty[stage]), turn / Shape::kStages % 2 ^ 1);
        if (threadIdx.x / 32 == kPackedWorkerThreads / 32) ask_for_weights(unit);
      }
      if ((super + 1) * kPackedInputs <= of_.inputs) {
        ask_for_inputs<true>(unit, super);
      } else {
        ask_for_inputs<false>(unit, super);
      }
      arrive_behind_copies(shared_address(&turns_.full[stage]));
      super = super + 1 == of_.chunks ? 0 : super + 1;
    }
  }

 private:
  __device__ std::uint32_t stage_of(int unit) const {
    return memory_ + static_cast<std::uint32_t>((unit - begin_) % Shape::kStages * Shape::kStageBytes);
  }
  /// A warp: a thread for a block row.
  __device__ void ask_for_weights(int unit) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int block_row = unit / of_.chunks * kPackedBlockRows, super = unit % of_.chunks;
    const int there = min(kPackedBlockRows, (of_.outputs + kPackedRows - 1) / kPackedRows - block_row);
    const std::uint32_t full = shared_address(&turns_.full[(unit - begin_) % Shape::kStages]);
    if (lane == 0) arrive_expecting(full, there * Shape::kSuperBytes);
    __syncwarp();
    if (lane >= there) return;
    const std::size_t number = static_cast<std::size_t>(block_row + lane) * of_.chunks + super;
    copy_bulk(stage_of(unit) + Shape::kInputBytes + static_cast<std::uint32_t>(lane * Shape::kSuperBytes),
              of_.weight + number * Shape::kSuperBytes, Shape::kSuperBytes, full);
  }
  /// A warp has every fourth row, a thread a pair of each 64 inputs. Rows that are not there stay as they are: nobody
  /// reads their sums. Inputs behind the last are zeros: they meet weights.
  template <bool kWhole>
  __device__ void ask_for_inputs(int unit, int super) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int first = super * kPackedInputs + lane * 2;
    const std::uint32_t stage = stage_of(unit) + static_cast<std::uint32_t>(word_);
    // Every second of its rows lies alike in eight.
    const std::uint32_t to[2] = {stage + tile_offset(warp, piece_), stage + tile_offset(warp + 4, piece_)};
    const std::size_t apart = static_cast<std::size_t>(of_.inputs) * 8;
    const std::byte* from = of_.in + (static_cast<std::size_t>(warp) * of_.inputs + first) * 2;
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i, from += apart) {
      if (i * 4 + warp >= of_.rows) break;
#pragma unroll
      for (int block = 0; block < kPackedInputs / 64; ++block) {
        const std::uint32_t place = to[i % 2] + static_cast<std::uint32_t>(i / 2 * 1024 + block * Shape::kBlockBytes);
        if constexpr (kWhole) {
          copy_4_bytes(place, from + block * 128);
        } else {
          const bool there = first + block * 64 < of_.inputs;
          copy_4_bytes(place, there ? from + block * 128 : of_.in, there);
        }
      }
    }
  }

  const WideArguments& of_;
  int begin_, end_;
  std::uint32_t memory_;
  typename Shape::Turns& turns_;
  int piece_, word_;
};

/// Half i of a word, twice.
template <int i>
__device__ inline std::uint32_t twice(std::uint32_t halves) {
  return __byte_perm(halves, halves, i == 0 ? 0x1010 : 0x3232);
}
__device__ inline std::uint32_t add_twos(std::uint32_t a, std::uint32_t b) {
  return multiply_add_twos(a, bf16_twos(1), b);
}

/// What makes weights of the integers of a super block: q s + o is (q - z) s + (o + z s), z the integer next to -o / s,
/// so that what is rounded is small where the weight is. A thread works that out for one tile of its outputs r and
/// r + 8; its neighbours have the other three.
template <Packing kPacking>
class SuperFactors {
  static constexpr bool kSixteen = kPacking.scales == Scales::super_signed;
  static constexpr bool kHasOffset = kPacking.scales == Scales::block_offset || kPacking.scales == Scales::super_offset;
  /// What widened integers have too much.
  static constexpr float kMore = kPacking.bits == 8 ? 0 : kTooMuch + kPacking.zero();

 public:
  /// `there`: weights that there are; else all become zeros.
  __device__ SuperFactors(const std::byte* super, bool there) {
    const int tile = static_cast<int>(threadIdx.x) % 4;
    const SuperScales of_super = read_super_scales<kPacking>(super);
    const TileScales<kPacking> of_tile = read_scales<kPacking>(super, tile);
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      const GroupScales by = group_scales<kPacking>(of_tile, of_super, group);
      float nearest[2];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float scale = there ? by.scale[0][row] : 0.0F;
        if constexpr (kHasOffset) {
          constexpr float kMost = (1 << kPacking.bits) - 1;
          const float offset = there ? by.offset[row] : 0.0F;
          const float z = rintf(__fdividef(-offset, scale));
          nearest[row] = z >= 0 && z <= kMost ? z : 0;  // no number where the scale is zero
          factors_[group][row] = bf16_pair(scale, offset + nearest[row] * scale);
        } else {
          factors_[group][row] = bf16_pair(scale, there ? by.scale[1][row] : 0.0F);
        }
      }
      if constexpr (kHasOffset) less_[group] = bf16_pair(-kMore - nearest[0], -kMore - nearest[1]);
    }
  }

  /// The weights of 32 inputs as bf16, of both steps.
  __device__ void make(const TileIntegers<kPacking>& integers, int tile, int group, const Widening& widening,
                       std::uint32_t (&to)[2][4]) const {
    const int from = static_cast<int>(threadIdx.x) % 32 / 4 * 4 + tile;
    widen_integers<kPacking, true>(integers, group * 2, widening, to[0]);
    widen_integers<kPacking, true>(integers, group * 2 + 1, widening, to[1]);
    std::uint32_t less = 0;
    if constexpr (kHasOffset) less = __shfl_sync(~0U, less_[group], from);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const std::uint32_t factors = __shfl_sync(~0U, factors_[group][row], from);
      const std::uint32_t of_row = row == 0 ? twice<0>(less) : twice<1>(less);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int j = row; j < 4; j += 2) {
          std::uint32_t& x = to[step][j];
          if constexpr (kHasOffset) {
            x = multiply_add_twos(add_twos(x, of_row), twice<0>(factors), twice<1>(factors));
          } else {
            if constexpr (kMore != 0) x = add_twos(x, bf16_twos(-kMore));
            x = multiply_add_twos(x, kSixteen && step == 1 ? twice<1>(factors) : twice<0>(factors), 0);
          }
        }
      }
    }
  }

 private:
  std::uint32_t factors_[2][2];  ///< [groups, rows] s and o + z s; without offsets s of both steps
  std::uint32_t less_[2];        ///< [groups] what integers lose, of both rows
};

/// The warpgroups that multiply.
template <Packing kPacking, int kRows>
__device__ void multiply_packed(const WideArguments& of, int begin, int end, const std::byte* memory,
                                typename PackedShape<kPacking, kRows>::Turns& turns, float* scales) {
  using Shape = PackedShape<kPacking, kRows>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto give_back = [&](int turn) {
    if (threadIdx.x % 32 == 0) arrive(shared_address(&turns.empty[turn % Shape::kStages]));
  };
  const Widening widening;
  WideSums<kRows, kPackedWorkers> results(of, scales);
  float sums[kRows / 2] = {};
  std::uint32_t weights[2][2][4] = {};  // of two groups: one is made while the other is multiplied
  for (int unit = begin; unit < end;) {
    const int tile = unit / of.chunks, first = unit;
    const int until = min(end, (tile + 1) * of.chunks);
    const bool there = (tile * kPackedBlockRows + warp) * kPackedRows < of.outputs;
    for (; unit < until; ++unit) {
      const int turn = unit - begin, stage = turn % Shape::kStages;
      wait_turn(shared_address(&turns.full[stage]), turn / Shape::kStages % 2);
      show_to_products();  // the inputs, which cp.async wrote
      const std::byte* const at = memory + stage * Shape::kStageBytes;
      const std::uint32_t start = shared_address(at);
      const std::byte* const super = at + Shape::kInputBytes + warp * Shape::kSuperBytes;
      const SuperFactors<kPacking> factors(super, there);
#pragma unroll
      for (int block = 0; block < 4; ++block) {
        const TileIntegers<kPacking> integers = read_integers<kPacking>(super, block);
        const auto inputs = static_cast<std::uint32_t>(operand(start + block * Shape::kBlockBytes, 0));
#pragma unroll
        for (int group = 0; group < 2; ++group) {
          std::uint32_t(&now)[2][4] = weights[group];
          factors.make(integers, block, group, widening, now);
          hold(now);
          begin_products();
#pragma unroll
          for (int step = 0; step < 2; ++step) {
            multiply_rows(sums, now[step], inputs + static_cast<std::uint32_t>((group * 2 + step) * 2),
                          unit > first || block + group + step > 0 ? 1 : 0);
          }
          close_products();
          wait_products<1>();
          hold(weights[group ^ 1]);
          if (block + group == 0 && unit > first) give_back(turn - 1);
        }
      }
    }
    wait_products<0>();
    hold(sums);
    hold(weights[1]);
    give_back(until - 1 - begin);
    results.take(tile, first, until, sums);
  }
  results.finish();
}

template <int kBits, Scales kScales, int kRows>
__global__ void __launch_bounds__(kPackedThreads, 1) packed_kernel(const __grid_constant__ WideArguments of) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr Packing kPacking{kBits, kScales};
  using Shape = PackedShape<kPacking, kRows>;
  using Feed = PackedFeed<kPacking, kRows>;
  __shared__ typename Shape::Turns turns;
  __shared__ float scales[kMostNormedPackedRows];
  extern __shared__ uint4 dynamic[];
  const std::uint32_t start = shared_address(dynamic), memory = (start + 1023U) & ~1023U;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      make_turns(shared_address(&turns.full[i]), 128 + 1);
      make_turns(shared_address(&turns.empty[i]), kPackedWorkerThreads / 32);
    }
    show_to_products();
  }
  const bool holds = of.op.end == FewRowsOp::End::gate;  // order.cuh
  let_next_begin(!holds);
  const int begin = first_of(of, static_cast<int>(blockIdx.x)), end = first_of(of, static_cast<int>(blockIdx.x) + 1);
  __syncthreads();
  if (threadIdx.x >= kPackedWorkerThreads) {
    const Feed feed(of, begin, end, memory, turns);
    feed.ask_for_first_weights();
    wait_for_launch_before();
    feed.run();
  } else {
    wait_for_launch_before();
    let_next_begin(holds);
    multiply_packed<kPacking, kRows>(of, begin, end, reinterpret_cast<const std::byte*>(dynamic) + (memory - start),
                                     turns, scales);
  }
#endif
}

}  // namespace glimpse::kernels::cuda
