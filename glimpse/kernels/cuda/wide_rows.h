// Products of weights with more rows than few_rows.h takes, on Hopper, where memory still limits them. Scales of
// quantised weights and the weights are rounded to bf16. A row's result does not depend on the other rows. Memory is
// the device's, owned by the caller until the stream has passed the call. One thread at a time. Errors: as
// operations.h.
#pragma once

#include "glimpse/kernels/cuda/few_rows.h"

namespace glimpse::kernels::cuda {

inline constexpr int kMostWideRows = 64;
/// The most rows of a bf16 matrix that has at least kLeastManyOutputs outputs for each processor. There the rows of
/// inputs, which each block reads from the cache, are no more bytes than its weights.
inline constexpr int kMostManyRows = 128;
inline constexpr int kLeastManyOutputs = 128;
/// The most whose products with quantised weights add to a residual and divide by its norm: of more, each block works
/// out as many norms as a launch between products takes.
inline constexpr int kMostNormedPackedRows = 32;

/// Whether the device and this build have them for such a matrix: of bf16 with 64 inputs or a multiple, of other
/// packings 32.
bool has_wide_rows(const Stream& stream, const PackedLayout& layout);

/// The most rows of such a product: kMostWideRows or kMostManyRows.
int most_wide_rows(const Stream& stream, const PackedLayout& layout);

/// Whether such products may end as FewRowsOp::End::add: of quantised weights a tile of outputs for each processor at
/// most.
bool wide_rows_add(const Stream& stream, const PackedLayout& layout);

/// The most rows that may add to a residual and divide by its norm.
int most_normed_wide_rows(const PackedLayout& layout);

/// Where the blocks of a launch leave parts of sums for each other, of quantised weights.
Array<float> make_wide_space(Stream& stream);

/// The product that `op` says, of up to most_wide_rows() rows. One of most_normed_wide_rows() may have `squares`, and,
/// where wide_rows_add(), end as FewRowsOp::End::add.
void multiply_wide_rows(Stream& stream, const Array<float>& space, const FewRowsOp& op);

}  // namespace glimpse::kernels::cuda
