// The kernel of multiply_few_rows. A block of threads makes a block row of outputs; its warps divide the super blocks
// of the inputs. Each has a few in shared memory while it multiplies another; the first are asked for before the launch
// before has ended, for weights never change.
#pragma once

#include "glimpse/kernels/cuda/few_rows.h"
#include "glimpse/kernels/cuda/order.cuh"
#include "glimpse/kernels/cuda/row_scales.cuh"
#include "glimpse/kernels/cuda/super_product.cuh"

namespace glimpse::kernels::cuda {

/// At most. A super block of bf16 is two to four times as large as others: half as many warps have as much under way.
constexpr int few_rows_warps(Scales scales) {
  return scales == Scales::none ? 4 : 8;
}

/// How many blocks a processor has at a time. Of one or two rows a warp has little to do beside each other, so a third
/// block hides waits where there are block rows enough; where there are few, longer rings do.
constexpr int few_rows_blocks(bool many) {
  return many ? 3 : 2;
}
/// Super blocks that a warp has in shared memory. Every device has room for them; for three blocks, Hopper.
template <Packing kPacking, int kRows, bool kMany>
constexpr int few_rows_stages() {
  constexpr int kWarps = few_rows_warps(kPacking.scales);
  constexpr int kMost = kMany ? 3 : kRows <= 4 ? 5 : 4;
  constexpr int kRoom = ((kMany ? 75 : 99) << 10) - (sum_floats<kPacking, kRows>(kWarps) + kRows) * 4;
  constexpr int kFit = kRoom / (kWarps * SuperBytes<kPacking>::kPlace);
  static_assert(kFit > 1);
  return kFit < kMost ? kFit : kMost;
}

struct FewRowsArguments {
  MatrixBytes weight;
  FewRowsOp op;
  int block_rows;
};

/// What an output is added to, and the norm's weight of it.
struct Residual {
  float value, norm;
};
__device__ inline Residual residual_of(const FewRowsArguments& of, int row, int output) {
  if (of.op.end != FewRowsOp::End::add) return {};
  return {of.op.out.raw()[static_cast<std::size_t>(row) * of.weight.outputs + output], of.op.norm.raw()[output]};
}

/// What becomes of the sum of one output of one row; 16 neighbouring threads have a row's. `counts`: it is a row and an
/// output that there are. `before`: residual_of() it.
__device__ inline void finish(const FewRowsArguments& of, int row, int output, float sum, bool counts,
                              const Residual& before) {
  const FewRowsOp& op = of.op;
  const std::size_t from = static_cast<std::size_t>(row);
  if (op.end == FewRowsOp::End::store) {
    if (counts) op.out.raw()[from * op.stride + output] = sum;
    return;
  }
  if (op.end == FewRowsOp::End::gate) {
    const float up = __shfl_down_sync(~0U, sum, 8);
    if (!counts || output % kPackedRows >= 8) return;
    const std::size_t to = from * (of.weight.outputs / 2) + output / kPackedRows * 8 + output % 8;
    op.narrow.raw()[to] = __bfloat16_as_ushort(__float2bfloat16_rn(sum / (1 + expf(-sum)) * up));
    return;
  }
  float square = 0;
  if (counts) {
    const std::size_t at = from * of.weight.outputs + output;
    const float value = before.value + sum;
    op.out.raw()[at] = value;
    op.narrow.raw()[at] = __bfloat16_as_ushort(__float2bfloat16_rn(value * before.norm));
    square = value * value;
  }
#pragma unroll
  for (int other = 8; other > 0; other /= 2) square += __shfl_xor_sync(~0U, square, other);
  if (counts && output % kPackedRows == 0) {
    op.squares_left.raw()[from * (of.weight.outputs / kPackedRows) + output / kPackedRows] = square;
  }
}

/// Up to kRows, as RowSums has them. kMany: see few_rows_blocks().
template <int kBits, Scales kScales, int kRows, bool kMany>
__global__ __launch_bounds__(32 * few_rows_warps(kScales),
                             few_rows_blocks(kMany)) void few_rows_kernel(const __grid_constant__ FewRowsArguments of) {
  constexpr Packing kPacking{kBits, kScales};
  constexpr int kStages = few_rows_stages<kPacking, kRows, kMany>();
  constexpr int kBytes = SuperBytes<kPacking>::kAll, kPlace = SuperBytes<kPacking>::kPlace;
  constexpr int kNone = -1;
  extern __shared__ __align__(128)
      std::byte shared[];  // [warps, stages] places, then sum_floats(), then scales of rows
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  std::byte* const ring = shared + warp * (kStages * kPlace);
  float* const all = reinterpret_cast<float*>(shared + warps * (kStages * kPlace));
  const Widening widening;
  // The block row and the number of the next super block to ask for.
  const int supers = of.weight.supers;
  int asked_row = static_cast<int>(blockIdx.x);
  int asked = asked_row < of.block_rows && warp < supers ? asked_row * supers + warp : kNone;
  const auto ask_for_next = [&](int stage) {
    if (asked != kNone) {
      const std::uint32_t to = shared_address(ring) + stage * kPlace;
      if constexpr (kScales == Scales::none) {
        copy_bf16_super(to, of.weight, asked_row, asked - asked_row * supers, lane);
      } else {
        copy_super<kPacking>(to + place_offset<kPacking>(asked),
                             of.weight.words + static_cast<std::size_t>(asked) * kBytes, lane);
      }
      asked += warps;
      if (asked >= (asked_row + 1) * supers) {
        asked_row += static_cast<int>(gridDim.x);
        asked = asked_row < of.block_rows ? asked_row * supers + warp : kNone;
      }
    }
    close_copies();
  };
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) ask_for_next(stage);
  begin_launch(of.op.end == FewRowsOp::End::gate);
  Ring place{ring};
  float* const scales = all + sum_floats<kPacking, kRows>(warps);
  const bool scaled = static_cast<bool>(of.op.squares);
  // Of many block rows none adds to the residual; of more than eight rows a thread has several outputs.
  multiply_block_rows<kPacking, kRows, kStages, !kMany && kRows <= 8>(
      {of.op.in.raw(), of.weight.inputs, of.op.rows, supers, of.block_rows}, static_cast<int>(blockIdx.x), warps,
      widening, place, all, ask_for_next,
      [&] {
        if (scaled) row_scales<1>(of.op, static_cast<int>(threadIdx.x) / 32, warps, scales);
      },
      [&](int row, int output) { return residual_of(of, row, output); },
      [&](int row, int output, float sum, bool counts, const Residual& before) {
        if (scaled && counts) sum *= scales[row];
        finish(of, row, output, sum, counts && output < of.weight.outputs, before);
      });
}

}  // namespace glimpse::kernels::cuda
