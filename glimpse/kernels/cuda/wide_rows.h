// Products of bf16 weights with more rows than few_rows.h takes, on Hopper, where memory still limits them. A
// row's result does not depend on the other rows. Memory is the device's, owned by the caller until the stream has
// passed the call. One thread at a time. Errors: as operations.h.
#pragma once

#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::kernels::cuda {

inline constexpr int kMostWideRows = 64;

/// Whether the device and this build have them for matrices of so many inputs: 64 or a multiple.
bool has_wide_rows(const Stream& stream, int inputs);

/// What the blocks of a launch leave for each other.
struct WideSpace {
  Array<float> partials;
  Array<unsigned> arrived;  ///< zero between launches
};
WideSpace make_wide_space(Stream& stream);

/// sum(row, output) = sum over inputs of in[row, input] * weight[output, input]
struct WideRowsOp {
  Pointer<const std::uint16_t, Place::device> weight;  ///< [outputs, inputs] bf16
  int outputs = 0, inputs = 0;
  Pointer<const std::uint16_t, Place::device> in;  ///< [rows, inputs] bf16
  int rows = 0;                                    ///< up to kMostWideRows
  Pointer<float, Place::device> out;               ///< [rows, stride] the sums, or null
  int stride = 0;
  /// Where `out` is null: [rows, outputs / 2] bf16, silu of outputs 0 to 7 of each sixteen times outputs 8 to 15.
  Pointer<std::uint16_t, Place::device> gated = {};
};
void multiply_wide_rows(Stream& stream, const WideSpace& space, const WideRowsOp& op);

}  // namespace glimpse::kernels::cuda
