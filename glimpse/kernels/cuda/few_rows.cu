#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/few_rows.cuh"
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/packings.h"
#include "glimpse/kernels/cuda/row_tokens.cuh"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct UnpackArguments {
  const std::byte* weights;
  Bf16* out;
  int first_block, supers, inputs, count;
};

/// A warp for a super block of 16 outputs: each thread has rows r and r + 8.
template <int kBits, Scales kScales>
__global__ void unpack_kernel(const __grid_constant__ UnpackArguments of) {
  constexpr Packing kPacking{kBits, kScales};
  constexpr int kBytes = SuperBytes<kPacking>::kAll;
  extern __shared__ std::byte shared[];  // [warps, bytes]
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int super = static_cast<int>(blockIdx.y) * (kThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (super >= of.supers) return;
  const std::byte* const block = shared + threadIdx.x / 32 * kBytes;
  copy_super<kPacking>(
      shared_address(block),
      of.weights + ((static_cast<std::size_t>(of.first_block) + blockIdx.x) * of.supers + super) * kBytes, lane);
  close_copies();
  wait_copies<0>();
  __syncwarp();
  const SuperScales scales = read_super_scales<kPacking>(block);
  const Widening widening;
#pragma unroll
  for (int group = 0; group < 8; ++group) {
    const int input = super * kPackedInputs + group * 32;
    if (input >= of.inputs) break;
    const TileIntegers<kPacking> tile = read_integers<kPacking>(block, group / 2);
    const GroupScales by = group_scales<kPacking>(read_scales<kPacking>(block, group / 2), scales, group % 2);
    std::uint32_t integers[2][4];
    widen_integers<kPacking, false>(tile, group % 2 * 2, widening, integers[0]);
    widen_integers<kPacking, false>(tile, group % 2 * 2 + 1, widening, integers[1]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = static_cast<int>(blockIdx.x) * kPackedRows + lane / 4 + 8 * i;
      if (row >= of.count) continue;
      std::uint32_t made[2][2];
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int two = 0; two < 2; ++two) {
          const std::uint32_t both = integers[step][i + 2 * two];
          const float scale = by.scale[step][i];
          const __nv_bfloat162 rounded =
              __floats2bfloat162_rn(scale * __uint_as_float(both << 16) + by.offset[i],
                                    scale * __uint_as_float(both & 0xffff0000U) + by.offset[i]);
          memcpy(&made[step][two], &rounded, sizeof rounded);
        }
      }
      Bf16* const to = of.out + static_cast<std::size_t>(row) * of.inputs + input;
      if constexpr (kScales == Scales::super_signed) {
        *reinterpret_cast<uint2*>(to + 4 * (lane % 4)) = make_uint2(made[0][0], made[0][1]);
        *reinterpret_cast<uint2*>(to + 16 + 4 * (lane % 4)) = make_uint2(made[1][0], made[1][1]);
      } else {
        *reinterpret_cast<uint4*>(to + 8 * (lane % 4)) = make_uint4(made[0][0], made[0][1], made[1][0], made[1][1]);
      }
    }
  }
}

struct UnpackRowsArguments {
  const std::uint32_t* words;
  PackedLayout layout;
  RowTokens tokens;
  float* out;
};

__device__ float value_at(const UnpackRowsArguments& of, int output, int input) {
  const PackedLayout& layout = of.layout;
  const int row = output % kPackedRows;
  const int in_super = input % kPackedInputs;
  const PackedPlace place = packed_place(layout.packing.scales, row, in_super);
  const std::size_t number = static_cast<std::size_t>(output / kPackedRows) * layout.supers() + input / kPackedInputs;
  const std::uint32_t* const super = of.words + number * layout.super_words();
  const std::uint32_t q = layout.integer(super, place);
  const float value = static_cast<float>(static_cast<int>(q) - layout.packing.zero());
  const int group = in_super / 32;
  const std::uint32_t* const scales = super + layout.scales() + row * 4;
  const std::uint32_t* const more = super + layout.more();
  switch (layout.packing.scales) {
    case Scales::block:
      return half_of(scales[group / 2], group % 2) * value;
    case Scales::block_offset: {
      const std::uint32_t offsets = more[row * 4 + group / 2];
      return half_of(scales[group / 2], group % 2) * value + half_of(offsets, group % 2);
    }
    case Scales::super_offset: {
      const std::uint32_t both = more[row];
      return half_of(both, 0) * byte_of(scales[group / 4], group % 4) * value -
             half_of(both, 1) * byte_of(scales[2 + group / 4], group % 4);
    }
    case Scales::super_signed: {
      const float scale = byte_of(scales[in_super / 64], in_super / 16 % 4) - 128.0F;
      return half_of(more[row], 0) * scale * value;
    }
    case Scales::none:  // EmbedOp takes those
      break;
  }
  return 0;
}

/// A block for each row.
__global__ void unpack_rows_kernel(const __grid_constant__ UnpackRowsArguments of) {
  begin_launch();
  const int token = token_of(of.tokens, static_cast<int>(blockIdx.x));
  const int inputs = of.layout.inputs;
  for (int i = static_cast<int>(threadIdx.x); i < inputs; i += kThreads) {
    of.out[static_cast<std::size_t>(blockIdx.x) * inputs + i] = value_at(of, token, i);
  }
}

/// How a launch divides a matrix: warps, on which bits depend, share the inputs of a block row.
struct Division {
  int warps = 1, blocks = 1;
  bool many = false;  ///< see few_rows_blocks()
};
/// As many warps as make all block rows run at once. Where there are too many of those, blocks with all warps that one
/// may have take turns while the rows are up to eight; of more rows a warp has enough to do, and blocks are small.
Division divide(const PackedLayout& layout, int rows, int processors) {
  constexpr int kOfProcessor = 16, kFewest = 4;
  const auto block_rows = static_cast<int>(layout.block_rows());
  const auto supers = static_cast<int>(layout.supers());
  const int most = few_rows_warps(layout.packing.scales);
  if (layout.packing.in_rows()) {
    return {std::min(most, supers), std::min(block_rows, few_rows_blocks(false) * processors), false};
  }
  const int wanted = (kOfProcessor * processors + block_rows - 1) / block_rows;
  if (wanted < kFewest && rows <= 8) {
    const bool many = rows <= 2;
    return {std::min(most, supers), std::min(block_rows, few_rows_blocks(many) * processors), many};
  }
  return {std::min(std::clamp(wanted, 2, most), supers), block_rows, false};
}

template <int kRows, bool kMany>
void launch_rows(Stream& stream, const FewRowsArguments& arguments, const Division& division) {
  with_packing(arguments.op.weight.layout.packing, [&]<int bits, Scales scales>() {
    constexpr Packing kPacking{bits, scales};
    if constexpr (kPacking.in_rows() && (kMany || kRows > kBf16FewRows)) return;  // never asked for
    constexpr int kStages = few_rows_stages<kPacking, kRows, kMany>() * SuperBytes<kPacking>::kPlace;
    const auto kernel = few_rows_kernel<bits, scales, kRows, kMany>;
    const int bytes = division.warps * kStages +
                      (sum_floats<kPacking, kRows>(division.warps) + kRows) * static_cast<int>(sizeof(float));
    allow_shared(kernel, bytes);
    const dim3 shape(static_cast<unsigned>(division.blocks), 32 * static_cast<unsigned>(division.warps));
    launch(kernel, arguments, shape, bytes, {launch_limits(stream), static_cast<cudaStream_t>(stream.raw())});
  });
}

}  // namespace

void multiply_few_rows(Stream& stream, const FewRowsOp& op) {
  const PackedLayout& layout = op.weight.layout;
  check(op.rows > 0 && op.rows <= kPackedFewRows && layout.inputs % 32 == 0, "few rows of inputs in blocks of 32");
  check(op.end == FewRowsOp::End::store || layout.outputs % kPackedRows == 0, "whole block rows of outputs");
  check(!op.squares || op.width % kPackedRows == 0, "squares of whole block rows");
  const FewRowsArguments arguments{{reinterpret_cast<const std::byte*>(op.weight.words.raw()), layout.outputs,
                                    layout.inputs, static_cast<int>(layout.supers())},
                                   op,
                                   static_cast<int>(layout.block_rows())};
  const Division division = divide(layout, op.rows, stream.device().processors);
  check(!layout.packing.in_rows() || op.rows <= kBf16FewRows, "few rows of bf16");
  with_rows(op.rows, [&]<int kRows>() {
    if constexpr (kRows <= 2) {
      if (division.many) return launch_rows<kRows, true>(stream, arguments, division);
    }
    launch_rows<kRows, false>(stream, arguments, division);
  });
}

void unpack(Stream& stream, const UnpackOp& op) {
  const PackedLayout& layout = op.weight.layout;
  check(!layout.packing.in_rows(), "packed weights");
  check(op.first % kPackedRows == 0 && op.first + op.count <= layout.outputs, "whole block rows of the matrix");
  const UnpackArguments arguments{reinterpret_cast<const std::byte*>(op.weight.words.raw()),
                                  op.out.raw(),
                                  op.first / kPackedRows,
                                  static_cast<int>(layout.supers()),
                                  layout.inputs,
                                  op.count};
  const auto warps = static_cast<unsigned>(kThreads / 32);
  const dim3 grid(static_cast<unsigned>((op.count + kPackedRows - 1) / kPackedRows),
                  (static_cast<unsigned>(layout.supers()) + warps - 1) / warps);
  with_packing(layout.packing, [&]<int bits, Scales scales>() {
    if constexpr (scales != Scales::none) {
      constexpr int kBytes = SuperBytes<Packing{bits, scales}>::kAll;
      unpack_kernel<bits, scales>
          <<<grid, kThreads, warps * kBytes, static_cast<cudaStream_t>(stream.raw())>>>(arguments);
      check_cuda(cudaGetLastError(), "launching a kernel");
    }
  });
}

void unpack_rows(Stream& stream, const UnpackRowsOp& op) {
  check(!op.weight.layout.packing.in_rows(), "packed weights");
  if (op.rows == 0) return;
  launch(unpack_rows_kernel, UnpackRowsArguments{op.weight.words.raw(), op.weight.layout, op.tokens, op.out.raw()},
         dim3(static_cast<unsigned>(op.rows), kThreads), 0,
         {launch_limits(stream), static_cast<cudaStream_t>(stream.raw()), false});
}

}  // namespace glimpse::kernels::cuda
