// Products of weights with more rows than few_rows.h takes, on Hopper, where memory still limits them. Scales of
// quantised weights and the weights are rounded to bf16. A row's result does not depend on the other rows. Memory is
// the device's, owned by the caller until the stream has passed the call. One thread at a time. Errors: as
// operations.h.
#pragma once

#include "glimpse/kernels/cuda/operations.h"
#include "glimpse/kernels/cuda/packed.h"

namespace glimpse::kernels::cuda {

inline constexpr int kMostWideRows = 64;

/// Whether the device and this build have them for such a matrix: of bf16 with 64 inputs or a multiple, of other
/// packings 32.
bool has_wide_rows(const Stream& stream, const PackedLayout& layout);

/// Where the blocks of a launch leave parts of sums for each other.
Array<float> make_wide_space(Stream& stream);

/// sum(row, output) = sum over inputs of in[row, input] * weight[output, input]
struct WideRowsOp {
  Packed<Place::device> weight;
  DevicePointer<const Bf16> in;  ///< [rows, inputs]
  int rows = 0;                  ///< up to kMostWideRows
  DevicePointer<float> out;      ///< [rows, stride] the sums, or null
  int stride = 0;
  /// Where `out` is null: [rows, outputs / 2], silu of outputs 0 to 7 of each sixteen times outputs 8 to 15.
  DevicePointer<Bf16> gated = {};
};
void multiply_wide_rows(Stream& stream, const Array<float>& space, const WideRowsOp& op);

}  // namespace glimpse::kernels::cuda
