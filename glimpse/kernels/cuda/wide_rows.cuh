// The kernel of wide_rows.h for bf16, for code for compute capability 9.0a. A unit is 128 outputs by 64 inputs. One
// thread asks for boxes of weights and inputs, several units ahead, and two warpgroups multiply 64 outputs each by all
// rows (wgmma).
#pragma once

#include "glimpse/kernels/cuda/boxes.cuh"
#include "glimpse/kernels/cuda/order.cuh"
#include "glimpse/kernels/cuda/wide_share.cuh"

namespace glimpse::kernels::cuda {

inline constexpr int kWideOutputs = 128, kWideInputs = kBoxWidth;  ///< of a unit
inline constexpr int kWideWorkers = 2;                             ///< warpgroups
inline constexpr int kWideWorkerThreads = kWideWorkers * 128;
inline constexpr int kWideThreads = kWideWorkerThreads + 32;
inline constexpr int kWideWeightBytes = kWideOutputs * kWideInputs * 2;

struct WideBf16Arguments {
  CUtensorMap weight, in;
  WideArguments of;
};

template <int kRows>
struct WideShape {
  static constexpr int kStageBytes = kWideWeightBytes + kRows * kWideInputs * 2;
  static constexpr int kStages = (200 << 10) / kStageBytes;
  using Turns = WideTurns<kStages>;
  static constexpr int kBytes = kStages * kStageBytes + 1024;  ///< and what aligning takes
  static constexpr int kSums = kRows / 2;                      ///< of a thread
};

/// Brings a block's units; one thread.
template <int kRows>
__device__ void bring(const WideBf16Arguments& arguments, int begin, int end, std::uint32_t memory,
                      typename WideShape<kRows>::Turns& turns) {
  using Shape = WideShape<kRows>;
  const int chunks = arguments.of.chunks;
  const auto full = [&](int turn) { return shared_address(&turns.full[turn % Shape::kStages]); };
  const auto place = [&](int turn) {
    return memory + static_cast<std::uint32_t>(turn % Shape::kStages * Shape::kStageBytes);
  };
  const auto ask_for_weights = [&](int turn) {
    const int unit = begin + turn;
    arrive_expecting(full(turn), Shape::kStageBytes);
    copy_box<true>(place(turn), arguments.weight, unit / chunks * kWideOutputs, unit % chunks * kWideInputs,
                   full(turn));
  };
  const auto ask_for_inputs = [&](int turn) {
    copy_box<false>(place(turn) + kWideWeightBytes, arguments.in, 0, (begin + turn) % chunks * kWideInputs, full(turn));
  };
  const int units = end - begin, first = min(units, Shape::kStages);
  // Weights never change: the first are on their way while the launch before ends.
  for (int turn = 0; turn < first; ++turn) ask_for_weights(turn);
  wait_for_launch_before();
  for (int turn = 0; turn < first; ++turn) ask_for_inputs(turn);
  for (int turn = first; turn < units; ++turn) {
    wait_turn(shared_address(&turns.empty[turn % Shape::kStages]), turn / Shape::kStages % 2 ^ 1);
    ask_for_weights(turn);
    ask_for_inputs(turn);
  }
}

/// sums (+)= 64 outputs by all rows of a unit.
template <int kRows>
__device__ inline void multiply_unit(float (&sums)[kRows / 2], std::uint32_t weights, std::uint32_t inputs, int add) {
  const std::uint64_t a = operand(weights, 0), b = operand(inputs, 0);
#pragma unroll
  for (int k = 0; k < kWideInputs / 16; ++k) {
    const auto step = static_cast<std::uint64_t>(k * 2);
    multiply_rows(sums, a + step, b + step, k > 0 ? 1 : add);
  }
}

template <int kRows>
__device__ void work(const WideArguments& of, int begin, int end, std::uint32_t memory,
                     typename WideShape<kRows>::Turns& turns, float* scales) {
  using Shape = WideShape<kRows>;
  WideSums<kRows, kWideWorkers> results(of, scales);
  const int group = static_cast<int>(threadIdx.x) / 128;
  const auto give_back = [&](int turn) {
    if (threadIdx.x % 32 == 0) arrive(shared_address(&turns.empty[turn % Shape::kStages]));
  };
  float sums[Shape::kSums] = {};
  for (int unit = begin; unit < end;) {
    const int tile = unit / of.chunks, first = unit;
    const int until = min(end, (tile + 1) * of.chunks);
    for (; unit < until; ++unit) {
      const int turn = unit - begin, stage = turn % Shape::kStages;
      wait_turn(shared_address(&turns.full[stage]), turn / Shape::kStages % 2);
      const std::uint32_t at = memory + static_cast<std::uint32_t>(stage * Shape::kStageBytes);
      begin_products();
      multiply_unit<kRows>(sums, at + static_cast<std::uint32_t>(group * (kWideWeightBytes / kWideWorkers)),
                           at + kWideWeightBytes, unit > first ? 1 : 0);
      close_products();
      if (unit > first) {
        wait_products<1>();
        give_back(turn - 1);
      }
    }
    wait_products<0>();
    hold(sums);
    give_back(until - 1 - begin);
    results.take(tile, first, until, sums);
  }
  results.finish();
}

template <int kRows>
__global__ void __launch_bounds__(kWideThreads, 1) wide_kernel(const __grid_constant__ WideBf16Arguments arguments) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = WideShape<kRows>;
  const WideArguments& of = arguments.of;
  __shared__ typename Shape::Turns turns;
  __shared__ float scales[kMostNormedWideRows];
  extern __shared__ uint4 dynamic[];
  const std::uint32_t memory = (shared_address(dynamic) + 1023U) & ~1023U;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      make_turns(shared_address(&turns.full[i]), 1);
      make_turns(shared_address(&turns.empty[i]), kWideWorkerThreads / 32);
    }
    show_to_products();
  }
  const bool holds = of.op.end == FewRowsOp::End::gate;  // order.cuh
  let_next_begin(!holds);
  const int begin = first_of(of, static_cast<int>(blockIdx.x)), end = first_of(of, static_cast<int>(blockIdx.x) + 1);
  __syncthreads();
  if (threadIdx.x >= kWideWorkerThreads) {
    if (threadIdx.x == kWideWorkerThreads) bring<kRows>(arguments, begin, end, memory, turns);
  } else {
    wait_for_launch_before();
    let_next_begin(holds);
    work<kRows>(of, begin, end, memory, turns, scales);
  }
#endif
}

}  // namespace glimpse::kernels::cuda
