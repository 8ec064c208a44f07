// The kernel of wide_rows.h for bf16, for code for compute capability 9.0a. A unit is 128 outputs by 64 inputs. A
// warpgroup brings weights and inputs by cp.async, several units ahead, and two multiply 64 outputs each by all rows
// (wgmma).
#pragma once

#include "glimpse/kernels/cuda/feed.cuh"
#include "glimpse/kernels/cuda/wide_share.cuh"

namespace glimpse::kernels::cuda {

inline constexpr int kWideOutputs = 128, kWideInputs = 64;  ///< of a unit
inline constexpr int kWideWorkers = 2;                      ///< warpgroups
inline constexpr int kWideWorkerThreads = kWideWorkers * 128;
inline constexpr int kWideThreads = kWideWorkerThreads + 128;
inline constexpr int kWideWeightBytes = kWideOutputs * kWideInputs * 2;

template <int kRows>
struct WideShape {
  static constexpr int kStageBytes = kWideWeightBytes + kRows * kWideInputs * 2;
  static constexpr int kStages = (200 << 10) / kStageBytes;
  using Turns = WideTurns<kStages>;
  static constexpr int kAhead = kStages - 3;                   ///< units under way that nobody was told of
  static constexpr int kBytes = kStages * kStageBytes + 1024;  ///< and what aligning takes
  static constexpr int kSums = kRows / 2;                      ///< of a thread
};

/// Brings a block's units: a thread the same piece of every sixteenth row.
template <int kRows>
__device__ void bring(const WideArguments& of, int begin, int end, std::uint32_t memory,
                      typename WideShape<kRows>::Turns& turns) {
  using Shape = WideShape<kRows>;
  const int thread = static_cast<int>(threadIdx.x) % 128, piece = thread % 8, row = thread / 8;
  const std::size_t row_bytes = static_cast<std::size_t>(of.inputs) * 2;
  const std::uint32_t place = memory + tile_offset(row, piece);
  const auto tell = [&](int unit) {
    show_to_products();
    __syncwarp();
    if (thread % 32 == 0) arrive(shared_address(&turns.full[(unit - begin) % Shape::kStages]));
  };
  for (int unit = begin; unit < end; ++unit) {
    const int turn = unit - begin, stage = turn % Shape::kStages;
    wait_turn(shared_address(&turns.empty[stage]), turn / Shape::kStages % 2 ^ 1);
    const int tile = unit / of.chunks, chunk = unit % of.chunks;
    const std::size_t column =
        static_cast<std::size_t>(chunk) * (kWideInputs * 2) + static_cast<std::size_t>(piece) * 16;
    const std::uint32_t to = place + static_cast<std::uint32_t>(stage * Shape::kStageBytes);
    const std::byte* const weights = of.weight + column;
#pragma unroll
    for (int i = 0; i < kWideOutputs / 16; ++i) {
      const int output = tile * kWideOutputs + i * 16 + row;
      const bool there = output < of.outputs;
      copy_16_bytes<true>(to + i * 2048, weights + (there ? output : 0) * row_bytes, there);
    }
    const std::byte* const inputs = of.in + column;
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
      const int number = i * 16 + row;
      const bool there = number < of.rows;
      copy_16_bytes<false>(to + kWideWeightBytes + i * 2048, inputs + (there ? number : 0) * row_bytes, there);
    }
    close_copies();
    if (turn >= Shape::kAhead) {
      wait_copies<Shape::kAhead>();
      tell(unit - Shape::kAhead);
    }
  }
  wait_copies<0>();
  for (int unit = max(begin, end - Shape::kAhead); unit < end; ++unit) tell(unit);
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
                     typename WideShape<kRows>::Turns& turns) {
  using Shape = WideShape<kRows>;
  WideSums<kRows, kWideWorkers> results(of);
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
__global__ void __launch_bounds__(kWideThreads, 1) wide_kernel(const __grid_constant__ WideArguments of) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = WideShape<kRows>;
  __shared__ typename Shape::Turns turns;
  extern __shared__ uint4 dynamic[];
  const std::uint32_t memory = (shared_address(dynamic) + 1023U) & ~1023U;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      make_turns(shared_address(&turns.full[i]), 4);
      make_turns(shared_address(&turns.empty[i]), kWideWorkerThreads / 32);
    }
  }
  let_next_begin();
  const int begin = first_of(of, static_cast<int>(blockIdx.x)), end = first_of(of, static_cast<int>(blockIdx.x) + 1);
  // Weights never change: the first are on their way while the launch before ends.
  if (threadIdx.x < kWideOutputs && begin < end) {
    const int output = begin / of.chunks * kWideOutputs + static_cast<int>(threadIdx.x), chunk = begin % of.chunks;
    const int bytes = min(Shape::kStages, of.chunks - chunk) * kWideInputs * 2;
    if (output < of.outputs) {
      const std::byte* const from =
          of.weight + static_cast<std::size_t>(output) * of.inputs * 2 + chunk * kWideInputs * 2;
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
    }
  }
  wait_for_launch_before();
  __syncthreads();
  if (threadIdx.x >= kWideWorkerThreads) {
    bring<kRows>(of, begin, end, memory, turns);
  } else {
    work<kRows>(of, begin, end, memory, turns);
  }
#endif
}

}  // namespace glimpse::kernels::cuda
