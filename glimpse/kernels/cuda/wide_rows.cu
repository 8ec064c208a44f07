#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/wide_packed.h"
#include "glimpse/kernels/cuda/wide_rows.cuh"

namespace glimpse::kernels::cuda {
namespace {

template <int kRows, int kTiles>
void launch_tiles(Stream& stream, const WideArguments& of, int blocks, int each, int rounds) {
  using Shape = WideShape<kRows, kTiles>;
  const int stages = Shape::stages(each);
  const WideBf16Arguments arguments{box_map(of.weight, of.inputs, of.outputs, each),
                                    box_map(of.in, of.inputs, of.rows, kRows),
                                    of,
                                    each,
                                    rounds,
                                    stages};
  launch_wide(stream, wide_kernel<kRows, kTiles>, arguments, blocks, Shape::kThreads,
              Shape::more_bytes(each) + stages * Shape::stage_bytes(each));
}

/// Each block has as many sixteens of outputs as the others, or fewer; no more at a time than sums have room for.
template <int kRows>
void launch_of(Stream& stream, const WideArguments& of) {
  const auto divided = [](int number, int by) { return (number + by - 1) / by; };
  const int sixteens = divided(of.outputs, 16), of_block = divided(sixteens, stream.device().processors);
  const int rounds = divided(of_block, kMostWideOutputs / 16), of_round = divided(of_block, rounds);
  const int blocks = divided(sixteens, of_round * rounds), each = of_round * 16;
  if constexpr (kRows <= kMostWideRows) {
    if (each <= 64) return launch_tiles<kRows, 1>(stream, of, blocks, each, rounds);
    if (each <= 128) return launch_tiles<kRows, 2>(stream, of, blocks, each, rounds);
  }
  launch_tiles<kRows, 4>(stream, of, blocks, each, rounds);
}

void launch_bf16(Stream& stream, const WideArguments& of) {
  if (of.rows <= 16) return launch_of<16>(stream, of);
  if (of.rows <= 32) return launch_of<32>(stream, of);
  if (of.rows <= 48) return launch_of<48>(stream, of);
  if (of.rows <= 64) return launch_of<64>(stream, of);
  if (of.rows <= 80) return launch_of<80>(stream, of);
  if (of.rows <= 96) return launch_of<96>(stream, of);
  launch_of<kMostManyRows>(stream, of);
}

}  // namespace

bool has_wide_rows(const Stream& stream, const PackedLayout& layout) {
  return GLIMPSE_COMPILES_FOR_HOPPER != 0 && stream.device().capability == 90 && layout.inputs > 0 &&
         layout.inputs % (layout.packing.in_rows() ? kWideInputs : 32) == 0;
}

int most_wide_rows(const Stream& stream, const PackedLayout& layout) {
  const bool many = layout.packing.in_rows() && layout.outputs >= stream.device().processors * kLeastManyOutputs;
  return many ? kMostManyRows : kMostWideRows;
}

bool wide_rows_add(const Stream& stream, const PackedLayout& layout) {
  return has_wide_rows(stream, layout) && layout.outputs % kPackedRows == 0 &&
         (layout.packing.in_rows() || layout.outputs <= stream.device().processors * kPackedOutputs);
}

int most_normed_wide_rows(const PackedLayout& layout) {
  return layout.packing.in_rows() ? kMostWideRows : kMostNormedPackedRows;
}

Array<float> make_wide_space(Stream& stream) {
  const auto blocks = static_cast<std::size_t>(stream.device().processors);
  Array<float> space(stream, blocks * 2 * kMostWideRows / 2 * kMostWideWorkers * 128);
  static_assert(kNothing == ~0U);
  space.memory().fill(std::byte{0xff});
  return space;
}

void multiply_wide_rows(Stream& stream, const Array<float>& space, const FewRowsOp& op) {
  const PackedLayout& layout = op.weight.layout;
  check(has_wide_rows(stream, layout), "a device that has products of wide rows");
  check(op.rows > 0 && op.rows <= most_wide_rows(stream, layout) && layout.outputs > 0,
        "no more than most_wide_rows()");
  const bool bf16 = layout.packing.in_rows();
  const int tiles = (layout.outputs + kPackedOutputs - 1) / kPackedOutputs;
  const int chunks = bf16 ? layout.inputs / kWideInputs : static_cast<int>(layout.supers());
  check(op.end == FewRowsOp::End::store || layout.outputs % kPackedRows == 0, "whole block rows of outputs");
  check(op.end != FewRowsOp::End::add || wide_rows_add(stream, layout), "a tile of outputs for each processor");
  check((op.end != FewRowsOp::End::add && !op.squares) || op.rows <= most_normed_wide_rows(layout),
        "norms of so many rows");
  check(!op.squares || op.width % kPackedRows == 0, "squares of whole block rows");
  const WideArguments of{reinterpret_cast<const std::byte*>(op.weight.words.raw()),
                         reinterpret_cast<const std::byte*>(op.in.raw()),
                         op,
                         space.pointer().raw(),
                         layout.outputs,
                         layout.inputs,
                         op.rows,
                         chunks,
                         tiles * chunks};
  bf16 ? launch_bf16(stream, of) : launch_wide_packed(stream, layout.packing, of);
}

}  // namespace glimpse::kernels::cuda
