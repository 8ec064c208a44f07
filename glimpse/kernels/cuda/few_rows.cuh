// The kernel of multiply_few_rows. A block of threads makes a block row of outputs; its warps divide the super blocks
// of the inputs. Each has a few in shared memory while it multiplies another; the first are asked for before the launch
// before has ended, for weights never change.
#pragma once

#include "glimpse/kernels/cuda/few_rows.h"
#include "glimpse/kernels/cuda/packed.cuh"

namespace glimpse::kernels::cuda {

inline constexpr int kFewRowsWarps = 8;  ///< at most

/// Super blocks that a warp has in shared memory: what every device has room for.
template <Packing kPacking>
inline constexpr int kFewRowsStages = kPacking.bits == 8   ? 2
                                      : kPacking.bits == 6 ? 3
                                                           : 4;

struct FewRowsArguments {
  PackedParts parts;
  FewRowsOp op;
  int outputs, inputs, supers, block_rows;
};

/// One super block times kTiles of eight rows. `in`: of each tile the thread's row at the super block's first input.
template <Packing kPacking, int kTiles>
__device__ void multiply_super(const std::byte* super, const Bf16* const (&in)[kTiles], int inputs,
                               float (&sums)[kTiles][4]) {
  constexpr bool kOffsets = kPacking.scales == Scales::block_offset || kPacking.scales == Scales::super_offset;
  constexpr bool kSixteen = kPacking.scales == Scales::super_signed;
  constexpr int kAtOnce = kTiles == 1 ? 4 : kTiles == 2 ? 2 : 1;  // more rows have enough to do beside each other
  const SuperScales scales = read_super_scales<kPacking>(super);
#pragma unroll kAtOnce
  for (int tile = 0; tile < 4; ++tile) {
    const Tile<kPacking> now = read_tile<kPacking>(super, tile);
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      const int input = tile * 64 + group * 32;
      const int first = input < inputs ? input : 0;  // behind the last input scales are zero
      uint4 values[kTiles];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if constexpr (kSixteen) {
          const uint2 a = *reinterpret_cast<const uint2*>(in[n] + first);
          const uint2 b = *reinterpret_cast<const uint2*>(in[n] + first + 16);
          values[n] = make_uint4(a.x, a.y, b.x, b.y);
        } else {
          values[n] = *reinterpret_cast<const uint4*>(in[n] + first);
        }
      }
      std::uint32_t weights[2][4];
      widen_integers<kPacking, kOffsets>(now, group * 2, weights[0]);
      widen_integers<kPacking, kOffsets>(now, group * 2 + 1, weights[1]);
      const GroupScales by = group_scales<kPacking>(now, scales, group);
      const float offset[2] = {by.offset[0] - kTooMuch * by.scale[0][0], by.offset[1] - kTooMuch * by.scale[0][1]};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        float products[4] = {};
        float others[4] = {};  // kSixteen: of the other step; kOffsets: sums of the inputs
        multiply<__nv_bfloat16>(products, weights[0], values[n].x, values[n].y);
        multiply<__nv_bfloat16>(kSixteen ? others : products, weights[1], values[n].z, values[n].w);
        if constexpr (kOffsets) {
          constexpr std::uint32_t kOnes[4] = {bf16_twos(1), bf16_twos(1), bf16_twos(1), bf16_twos(1)};
          multiply<__nv_bfloat16>(others, kOnes, values[n].x, values[n].y);
          multiply<__nv_bfloat16>(others, kOnes, values[n].z, values[n].w);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[n][i] += by.scale[0][i / 2] * products[i];
          if constexpr (kSixteen) sums[n][i] += by.scale[1][i / 2] * others[i];
          if constexpr (kOffsets) sums[n][i] += offset[i / 2] * others[i];
        }
      }
    }
  }
}

/// What becomes of the sum of one output of one row; 16 neighbouring threads have a row's. `counts`: it is a row and an
/// output that there are.
__device__ inline void finish(const FewRowsArguments& of, int row, int output, float sum, bool counts) {
  const FewRowsOp& op = of.op;
  if (!op.gated) {
    if (counts) op.out.raw()[static_cast<std::size_t>(row) * op.stride + output] = sum;
    return;
  }
  const float up = __shfl_down_sync(~0U, sum, 8);
  if (!counts || output % kPackedRows >= 8) return;
  const std::size_t to = static_cast<std::size_t>(row) * (of.outputs / 2) + output / kPackedRows * 8 + output % 8;
  op.gated.raw()[to] = __bfloat16_as_ushort(__float2bfloat16_rn(sum / (1 + expf(-sum)) * up));
}

/// kTiles of eight rows; columns behind the last row repeat the first.
template <int kBits, Scales kScales, int kTiles>
__global__ __launch_bounds__(32 * kFewRowsWarps, 2) void few_rows_kernel(const __grid_constant__ FewRowsArguments of) {
  constexpr Packing kPacking{kBits, kScales};
  constexpr int kStages = kFewRowsStages<kPacking>;
  constexpr int kBytes = SuperBytes<kPacking>::kAll;
  extern __shared__ std::byte shared[];  // [warps, stages, bytes], then [warps, 8 kTiles, 16] sums
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  std::byte* const ring = shared + warp * (kStages * kBytes);
  float* const all = reinterpret_cast<float*>(shared + warps * (kStages * kBytes));
  int asked_row = static_cast<int>(blockIdx.x);
  int asked_super = warp;
  const auto ask_for_next = [&](int stage) {
    if (asked_row < of.block_rows) {
      copy_super<kPacking>(shared_address(ring + stage * kBytes), of.parts,
                           static_cast<std::size_t>(asked_row) * of.supers + asked_super);
      asked_super += warps;
      if (asked_super >= of.supers) {
        asked_super = warp;
        asked_row += static_cast<int>(gridDim.x);
      }
    }
    end_copies();
  };
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) ask_for_next(stage);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
  int stage = 0;
  for (int block_row = static_cast<int>(blockIdx.x); block_row < of.block_rows;
       block_row += static_cast<int>(gridDim.x)) {
    float sums[kTiles][4] = {};
    for (int super = warp; super < of.supers; super += warps) {
      wait_for_copies<kStages - 1>();
      __syncwarp();
      const Bf16* in[kTiles];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int row = n * 8 + lane / 4;
        in[n] = of.op.in.raw() + static_cast<std::size_t>(row < of.op.rows ? row : 0) * of.inputs +
                super * kPackedInputs + (kScales == Scales::super_signed ? 4 : 8) * (lane % 4);
      }
      multiply_super<kPacking>(ring + stage * kBytes, in, of.inputs - super * kPackedInputs, sums);
      __syncwarp();
      ask_for_next(stage);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    // The warps' sums, added in their order.
    if (block_row != static_cast<int>(blockIdx.x)) __syncthreads();  // the sums before are read
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = n * 8 + 2 * (lane % 4) + i % 2;
        all[(warp * 8 * kTiles + row) * kPackedRows + lane / 4 + i / 2 * 8] = sums[n][i];
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kTiles * 128; i += static_cast<int>(blockDim.x)) {  // whole warps
      const int row = i / kPackedRows;
      const int output = block_row * kPackedRows + i % kPackedRows;
      float sum = 0;
      for (int w = 0; w < warps; ++w) sum += all[w * (kTiles * 128) + i];
      finish(of, row, output, sum, row < of.op.rows && output < of.outputs);
    }
  }
}

}  // namespace glimpse::kernels::cuda
