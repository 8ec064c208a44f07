// How the kernels of wide_rows.h end: what becomes of sums of kRows rows in the threads of warpgroups, as products
// leave them. A warp has sixteen outputs; a thread two of them, eight apart, for two neighbouring rows of each eight.
#pragma once

#include "glimpse/kernels/cuda/row_scales.cuh"
#include "glimpse/kernels/cuda/wgmma.cuh"
#include "glimpse/kernels/cuda/wide_rows.h"

namespace glimpse::kernels::cuda {

struct WideArguments {
  const std::byte* weight;
  const std::byte* in;
  FewRowsOp op;
  float* partials;
  int outputs, inputs, rows;
  int chunks, units;  ///< units of a tile, and of all
};

/// Hands of the stages of units, from those who bring to those who multiply, and back.
template <int kStages>
struct WideTurns {
  std::uint64_t full[kStages], empty[kStages];
};

/// kNorms: rows may have norms.
template <int kRows, bool kNorms>
class WideEnd {
 public:
  /// `scales`: room for those of rows.
  __device__ WideEnd(const WideArguments& of, float* scales) : of_(of), scales_(scales) {}

  /// Works out the scales of rows where there are some: `warps` warps call it, each as another `warp` of them. Then
  /// they meet at `barrier`, `threads` threads together, who waits for the scales among them.
  template <int kAtOnce>
  __device__ void find_scales(int warp, int warps, int barrier, int threads) const {
    if constexpr (kNorms) {
      if (!of_.op.squares) return;
      row_scales<kAtOnce>(of_.op, warp, warps, scales_);
      meet(barrier, threads);
    }
  }
  __device__ void wait_for_scales(int barrier, int threads) const {
    if (kNorms && of_.op.squares) meet(barrier, threads);
  }

  /// What becomes of eight rows' sums of a warp's sixteen outputs from `sixteen`. `residual`: residual_of() it.
  __device__ void end(int sixteen, int eight, const float* sums, const float4& residual) const {
    if (kNorms && of_.op.end == FewRowsOp::End::add) {
      add(sixteen, eight, sums, residual);
    } else {
      write(sixteen, eight, sums);
    }
  }
  /// Of a warp's sixteen outputs from `sixteen`: what eight rows' sums are added to, in their order; zeros where they
  /// are added to nothing.
  __device__ float4 residual_of(int sixteen, int eight) const {
    float before[4] = {};
    const int output = sixteen + static_cast<int>(threadIdx.x) % 32 / 4;
    if (kNorms && of_.op.end == FewRowsOp::End::add && sixteen < of_.outputs) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (row_of(eight, i) >= of_.rows) continue;
        const float* const at = of_.op.out.raw() + static_cast<std::size_t>(row_of(eight, i)) * of_.outputs + output;
        before[i] = __ldcg(at);
        before[2 + i] = __ldcg(at + 8);
      }
    }
    return make_float4(before[0], before[1], before[2], before[3]);
  }

  /// end() of a product that does not add.
  __device__ void write(int sixteen, int eight, const float* sums) const {
    const FewRowsOp& op = of_.op;
    const int output = sixteen + static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = row_of(eight, i);
      if (row >= of_.rows) continue;
      const float scale = scale_of(row), first = sums[i] * scale, second = sums[2 + i] * scale;
      if (op.end == FewRowsOp::End::store) {
        float* const to = op.out.raw() + static_cast<std::size_t>(row) * op.stride + output;
        if (output < of_.outputs) to[0] = first;
        if (output + 8 < of_.outputs) to[8] = second;
      } else if (sixteen < of_.outputs) {
        const float gate = first / (1 + expf(-first));
        op.narrow.raw()[static_cast<std::size_t>(row) * (of_.outputs / 2) + sixteen / 2 + output - sixteen] =
            __bfloat16_as_ushort(__float2bfloat16_rn(gate * second));
      }
    }
  }

 private:
  /// The row of a thread's i-th pair of sums of eight rows: of two outputs that are eight apart.
  __device__ int row_of(int eight, int i) const {
    return eight * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i;
  }
  __device__ float scale_of(int row) const {
    return kNorms && of_.op.squares ? scales_[row] : 1.0F;
  }
  /// `residual`: residual_of() it.
  __device__ void add(int sixteen, int eight, const float* sums, const float4& residual) const {
    const FewRowsOp& op = of_.op;
    const int lane = static_cast<int>(threadIdx.x) % 32, output = sixteen + lane / 4;
    if (sixteen >= of_.outputs) return;  // the whole warp
    const float before[4] = {residual.x, residual.y, residual.z, residual.w};
    const float norms[2] = {op.norm.raw()[output], op.norm.raw()[output + 8]};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = row_of(eight, i);
      const bool there = row < of_.rows;
      const float scale = there ? scale_of(row) : 0;
      const float low = before[i] + sums[i] * scale, high = before[2 + i] + sums[2 + i] * scale;
      float square = low * low + high * high;
      if (there) {
        const std::size_t at = static_cast<std::size_t>(row) * of_.outputs + output;
        op.out.raw()[at] = low;
        op.out.raw()[at + 8] = high;
        op.narrow.raw()[at] = __bfloat16_as_ushort(__float2bfloat16_rn(low * norms[0]));
        op.narrow.raw()[at + 8] = __bfloat16_as_ushort(__float2bfloat16_rn(high * norms[1]));
      }
#pragma unroll
      for (int step = 4; step < 32; step *= 2) square += __shfl_xor_sync(~0U, square, step);
      if (there && lane < 4) {
        op.squares_left.raw()[static_cast<std::size_t>(row) * (of_.outputs / kPackedRows) + sixteen / kPackedRows] =
            square;
      }
    }
  }

  const WideArguments& of_;
  float* scales_;
};

}  // namespace glimpse::kernels::cuda
