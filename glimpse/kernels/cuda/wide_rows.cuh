// The kernel of wide_rows.h for bf16, for code for compute capability 9.0a. A block has whole outputs, about as many as
// every other, so that nobody adds up what others have: it reads all inputs of its outputs once, and the rows of inputs
// with them. One thread asks for boxes of weights and inputs, 64 columns of both, as far ahead as there is room;
// warpgroups multiply 64 outputs each by all rows (wgmma). Where a block has no more than these, two warpgroups take
// turns.
#pragma once

#include "glimpse/kernels/cuda/boxes.cuh"
#include "glimpse/kernels/cuda/order.cuh"
#include "glimpse/kernels/cuda/wide_end.cuh"

namespace glimpse::kernels::cuda {

inline constexpr int kWideInputs = kBoxWidth;  ///< of a stage
inline constexpr int kMostWideStages = 36;
inline constexpr int kMostWideOutputs = 256;  ///< that a block has at a time
inline constexpr int kWideHelpers = 4;        ///< warps: one brings, the others find the scales of rows

struct WideBf16Arguments {
  CUtensorMap weight, in;
  WideArguments of;
  int each;    ///< outputs that a block has at a time, a multiple of 16
  int rounds;  ///< so often; once where warpgroups take turns
  int stages;  ///< that there is room for
};

/// kTiles: of 64 outputs, that a block has at a time.
template <int kRows, int kTiles>
struct WideShape {
  static constexpr int kTurns = kTiles == 1 ? 2 : 1;  ///< warpgroups that take turns
  static constexpr int kWorkerThreads = kTiles * kTurns * 128;
  static constexpr int kThreads = kWorkerThreads + kWideHelpers * 32;
  static constexpr int kInBytes = kRows * kWideInputs * 2;
  static constexpr int kEights = kRows / 8;
  static constexpr int kHanded = kTurns > 1 ? kEights * 128 : 1;  ///< sums in fours
  static constexpr int stage_bytes(int each) { return each * kWideInputs * 2 + kInBytes; }
  /// What aligning takes, and what products read behind a stage with less than whole tiles.
  static constexpr int more_bytes(int each) { return 1024 + (kTiles * 64 - each) * kWideInputs * 2; }
  static constexpr int stages(int each) {
    const int fit = ((224 << 10) - kHanded * 16 - more_bytes(each)) / stage_bytes(each);
    return fit < kMostWideStages ? fit : kMostWideStages;
  }
  static_assert(stages(kTiles * 64) > kTurns, "who waits for a stage holds another");
};

/// The stage of a turn, and its parity.
struct StageTurn {
  int stage = 0, parity = 0;
  __device__ void advance(int by, int stages) {
    stage += by;
    if (stage >= stages) {
      stage -= stages;
      parity ^= 1;
    }
  }
};

/// Brings what a block reads; one thread.
template <int kRows, int kTiles>
__device__ void bring(const WideBf16Arguments& arguments, std::uint32_t memory, WideTurns<kMostWideStages>& turns) {
  using Shape = WideShape<kRows, kTiles>;
  const int weight_bytes = arguments.each * kWideInputs * 2, stage_bytes = Shape::stage_bytes(arguments.each);
  const int chunks = arguments.of.chunks, all = arguments.rounds * chunks;
  const auto full = [&](int stage) { return shared_address(&turns.full[stage]); };
  const auto place = [&](int stage) { return memory + static_cast<std::uint32_t>(stage * stage_bytes); };
  int row = static_cast<int>(blockIdx.x) * arguments.rounds * arguments.each, chunk = 0;
  const auto ask_for_weights = [&](int stage) {
    arrive_expecting(full(stage), stage_bytes);
    copy_box<true>(place(stage), arguments.weight, row, chunk * kWideInputs, full(stage));
  };
  const auto ask_for_inputs = [&](int stage, int of) {
    copy_box<false>(place(stage) + static_cast<std::uint32_t>(weight_bytes), arguments.in, 0, of * kWideInputs,
                    full(stage));
  };
  const auto go_on = [&] {
    if (++chunk == chunks) chunk = 0, row += arguments.each;
  };
  const int first = min(all, arguments.stages);
  // Weights never change: the first are on their way while the launch before ends.
  for (int turn = 0; turn < first; ++turn, go_on()) ask_for_weights(turn);
  wait_for_launch_before();
  for (int turn = 0, of = 0; turn < first; ++turn) {
    ask_for_inputs(turn, of);
    if (++of == chunks) of = 0;
  }
  StageTurn at;
  for (int turn = first; turn < all; ++turn, go_on()) {
    wait_turn(shared_address(&turns.empty[at.stage]), at.parity);
    ask_for_weights(at.stage);
    ask_for_inputs(at.stage, chunk);
    at.advance(1, arguments.stages);
  }
}

/// sums += 64 outputs by all rows, of 64 inputs.
template <int kRows>
__device__ inline void multiply_stage(float (&sums)[kRows / 2], std::uint32_t weights, std::uint32_t inputs) {
  const std::uint64_t a = operand(weights, 0), b = operand(inputs, 0);
#pragma unroll
  for (int k = 0; k < kWideInputs / 16; ++k) {
    const auto step = static_cast<std::uint64_t>(k * 2);
    multiply_rows(sums, a + step, b + step, 1);
  }
}

template <int kRows, int kTiles>
__device__ void work(const WideBf16Arguments& arguments, std::uint32_t memory, WideTurns<kMostWideStages>& turns,
                     float4* handed, float* scales) {
  using Shape = WideShape<kRows, kTiles>;
  constexpr int kTurns = Shape::kTurns, kEights = Shape::kEights;
  const WideEnd<kRows, true> ending(arguments.of, scales);
  const int group = static_cast<int>(threadIdx.x) / 128, thread = static_cast<int>(threadIdx.x) % 128;
  const int tile = kTurns > 1 ? 0 : group, turn_of_group = kTurns > 1 ? group : 0;
  const int weight_bytes = arguments.each * kWideInputs * 2, stage_bytes = Shape::stage_bytes(arguments.each);
  const auto give_back = [&](int stage) {
    if (threadIdx.x % 32 == 0) arrive(shared_address(&turns.empty[stage]));
  };
  const int chunks = arguments.of.chunks;
  StageTurn at;
  at.advance(turn_of_group, arguments.stages);
  int turn = turn_of_group;  // of all rounds
#pragma unroll 1
  for (int round = 0; round < arguments.rounds; ++round) {
    const int in_round = tile * 64 + thread / 32 * 16;
    const int first = (static_cast<int>(blockIdx.x) * arguments.rounds + round) * arguments.each;
    const int sixteen = in_round < arguments.each ? first + in_round : arguments.of.outputs;
    float4 before[kEights / kTurns] = {};
    if (kTurns > 1) {
#pragma unroll
      for (int i = 0; i < kEights / kTurns; ++i) {
        before[i] = ending.residual_of(sixteen, i * kTurns + turn_of_group);
      }
    }
    float sums[kRows / 2] = {};
    int held = -1;
#pragma unroll 1
    for (; turn < (round + 1) * chunks; turn += kTurns) {
      wait_turn(shared_address(&turns.full[at.stage]), at.parity);
      const std::uint32_t stage = memory + static_cast<std::uint32_t>(at.stage * stage_bytes);
      begin_products();
      multiply_stage<kRows>(sums, stage + static_cast<std::uint32_t>(tile * 64 * kWideInputs * 2),
                            stage + static_cast<std::uint32_t>(weight_bytes));
      close_products();
      if (held >= 0) {
        wait_products<1>();
        give_back(held);
      }
      held = at.stage;
      at.advance(kTurns, arguments.stages);
    }
    wait_products<0>();
    hold(sums);
    if (held >= 0) give_back(held);
    // Each of two warpgroups hands the other every second eight of its rows.
    if (kTurns > 1) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        const float* const own = sums + i * 4;
        if (i % kTurns != turn_of_group) handed[i * 128 + thread] = make_float4(own[0], own[1], own[2], own[3]);
      }
      meet(1, Shape::kWorkerThreads);
    }
    if (round == 0) ending.wait_for_scales(2, Shape::kThreads - 32);
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      if (i % kTurns != turn_of_group) continue;
      float all[4] = {sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]};
      if (kTurns > 1) {
        const float4 other = handed[i * 128 + thread];
        all[0] += other.x, all[1] += other.y, all[2] += other.z, all[3] += other.w;
      }
      ending.end(sixteen, i, all, kTurns > 1 ? before[i / kTurns] : ending.residual_of(sixteen, i));
    }
  }
}

template <int kRows, int kTiles>
__global__ void __launch_bounds__(WideShape<kRows, kTiles>::kThreads, 1)
    wide_kernel(const __grid_constant__ WideBf16Arguments arguments) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = WideShape<kRows, kTiles>;
  const WideArguments& of = arguments.of;
  __shared__ WideTurns<kMostWideStages> turns;
  __shared__ float scales[kRows];
  __shared__ float4 handed[Shape::kHanded];
  extern __shared__ uint4 dynamic[];
  const std::uint32_t memory = (shared_address(dynamic) + 1023U) & ~1023U;
  if (threadIdx.x == 0) {
    for (int i = 0; i < arguments.stages; ++i) {
      make_turns(shared_address(&turns.full[i]), 1);
      make_turns(shared_address(&turns.empty[i]), kTiles * 4);
    }
    show_to_products();
  }
  const bool holds = of.op.end == FewRowsOp::End::gate;  // order.cuh
  let_next_begin(!holds);
  __syncthreads();
  const int helper = (static_cast<int>(threadIdx.x) - Shape::kWorkerThreads) / 32;
  if (threadIdx.x >= Shape::kWorkerThreads && helper == 0) {
    if (threadIdx.x % 32 == 0) bring<kRows, kTiles>(arguments, memory, turns);
    return;
  }
  wait_for_launch_before();
  let_next_begin(holds);
  if (threadIdx.x >= Shape::kWorkerThreads) {
    const WideEnd<kRows, true> ending(of, scales);
    ending.template find_scales<4>(helper - 1, kWideHelpers - 1, 2, Shape::kThreads - 32);
  } else {
    work<kRows, kTiles>(arguments, memory, turns, handed, scales);
  }
#endif
}

}  // namespace glimpse::kernels::cuda
