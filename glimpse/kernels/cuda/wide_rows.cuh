// The kernel of wide_rows.h, for code for compute capability 9.0a. A matrix is a row of units, 128 outputs by 64
// inputs, output tile by output tile. Every block takes an equal share of them: a warpgroup brings weights and inputs
// by cp.async, several units ahead, and two multiply 64 outputs each by all rows (wgmma). A tile that several blocks
// share leaves partial sums; the block that comes last adds them in the order of the blocks.
#pragma once

#include "glimpse/kernels/cuda/feed.cuh"
#include "glimpse/kernels/cuda/share.cuh"
#include "glimpse/kernels/cuda/wgmma.cuh"
#include "glimpse/kernels/cuda/wide_rows.h"

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
  static constexpr int kAhead = kStages - 3;                   ///< units under way that nobody was told of
  static constexpr int kBytes = kStages * kStageBytes + 1024;  ///< and what aligning takes
  static constexpr int kSums = kRows / 2;                      ///< of a thread
};

struct WideArguments {
  const std::byte* weight;
  const std::byte* in;
  float* out;  ///< null: gated
  std::uint16_t* gated;
  float* partials;
  unsigned* arrived;
  int outputs, inputs, rows, stride;
  int chunks, units;
};

template <int kRows>
struct WideTurns {
  std::uint64_t full[WideShape<kRows>::kStages], empty[WideShape<kRows>::kStages];
};

/// The first unit of a block.
__device__ inline int first_of(const WideArguments& of, int block) {
  return static_cast<int>(static_cast<std::int64_t>(of.units) * block / gridDim.x);
}
/// Whose share a unit is.
__device__ inline int block_of(const WideArguments& of, int unit) {
  return static_cast<int>(((static_cast<std::int64_t>(unit) + 1) * gridDim.x - 1) / of.units);
}

/// Brings a block's units: a thread the same piece of every sixteenth row.
template <int kRows>
__device__ void bring(const WideArguments& of, int begin, int end, std::uint32_t memory, WideTurns<kRows>& turns) {
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

/// A thread has two outputs that are eight apart, for two neighbouring rows of each eight.
template <int kRows>
__device__ inline void write_out(const WideArguments& of, int tile, const float (&sums)[kRows / 2]) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int sixteen = tile * kWideOutputs + thread / 32 * 16, output = sixteen + lane / 4;
#pragma unroll
  for (int i = 0; i < kRows / 4; ++i) {
    const int row = i / 2 * 8 + lane % 4 * 2 + i % 2;
    if (row >= of.rows) continue;
    const float first = sums[i / 2 * 4 + i % 2], second = sums[i / 2 * 4 + 2 + i % 2];
    if (of.out != nullptr) {
      float* const to = of.out + static_cast<std::size_t>(row) * of.stride + output;
      if (output < of.outputs) to[0] = first;
      if (output + 8 < of.outputs) to[8] = second;
    } else if (sixteen < of.outputs) {
      const float gate = first / (1 + expf(-first));
      of.gated[static_cast<std::size_t>(row) * (of.outputs / 2) + sixteen / 2 + lane / 4] =
          __bfloat16_as_ushort(__float2bfloat16_rn(gate * second));
    }
  }
}

/// Leaves a block's part of a tile; the block that comes last has the sum of all and writes it.
template <int kRows>
__device__ void share_tile(const WideArguments& of, int tile, bool begins, float (&sums)[kRows / 2], int& last) {
  constexpr int kFours = kRows / 8;
  const int thread = static_cast<int>(threadIdx.x);
  const auto place = [&](int block, bool first) {
    return reinterpret_cast<float4*>(of.partials) +
           (static_cast<std::size_t>(block) * 2 + (first ? 1 : 0)) * (kMostWideRows / 8 * kWideWorkerThreads) + thread;
  };
  float4* const own = place(static_cast<int>(blockIdx.x), begins);
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    own[i * kWideWorkerThreads] = make_float4(sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]);
  }
  const int first_block = block_of(of, tile * of.chunks), last_block = block_of(of, (tile + 1) * of.chunks - 1);
  meet(1, kWideWorkerThreads);
  if (thread == 0) {
    unsigned before = 0;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(of.arrived + tile) : "memory");
    last = static_cast<int>(before) == last_block - first_block ? 1 : 0;
    if (last != 0) of.arrived[tile] = 0;
  }
  meet(1, kWideWorkerThreads);
  if (last == 0) return;
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) sums[i] = 0;
  for (int block = first_block; block <= last_block; ++block) {
    const float4* const part = place(block, block == first_block && first_of(of, block) <= tile * of.chunks);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const float4 x = __ldcg(part + i * kWideWorkerThreads);
      sums[i * 4] += x.x;
      sums[i * 4 + 1] += x.y;
      sums[i * 4 + 2] += x.z;
      sums[i * 4 + 3] += x.w;
    }
  }
  write_out<kRows>(of, tile, sums);
}

template <int kRows>
__device__ void work(const WideArguments& of, int begin, int end, std::uint32_t memory, WideTurns<kRows>& turns,
                     int& last) {
  using Shape = WideShape<kRows>;
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
    if (first == tile * of.chunks && until == (tile + 1) * of.chunks) {
      write_out<kRows>(of, tile, sums);
    } else {
      share_tile<kRows>(of, tile, first == tile * of.chunks, sums, last);
    }
  }
}

template <int kRows>
__global__ void __launch_bounds__(kWideThreads, 1) wide_kernel(const __grid_constant__ WideArguments of) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = WideShape<kRows>;
  __shared__ WideTurns<kRows> turns;
  __shared__ int last;
  extern __shared__ uint4 dynamic[];
  const std::uint32_t memory = (shared_address(dynamic) + 1023U) & ~1023U;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      make_turns(shared_address(&turns.full[i]), 4);
      make_turns(shared_address(&turns.empty[i]), kWideWorkerThreads / 32);
    }
  }
  let_next_begin(true);
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
    work<kRows>(of, begin, end, memory, turns, last);
  }
#endif
}

}  // namespace glimpse::kernels::cuda
