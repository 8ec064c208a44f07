// Products with quantised and bf16 weights on a GPU, queued on a stream: by few rows of inputs straight from the packed
// integers, and for many rows the weights as bf16. Inputs are bf16; integers and inputs are multiplied exactly on
// tensor cores and summed in f32, and scales join the sums of their inputs. A row's result does not depend on the other
// rows of a product, but on whether there are more than eight. Memory is the device's, owned by the caller until the
// stream has passed the call. Errors: as operations.h.
#pragma once

#include "glimpse/kernels/cuda/operations.h"
#include "glimpse/kernels/cuda/packed.h"
#include "glimpse/kernels/cuda/readings.h"

namespace glimpse::kernels::cuda {

/// The most rows of one multiply_few_rows(), of packed weights and of bf16.
inline constexpr int kPackedFewRows = 32, kBf16FewRows = 8;

/// sum(row, output) = sum over inputs of in[row, input] * weight[output, input]
///
/// A norm between two products is part of them: what adds to the residual leaves it times the norm's weights, and sums
/// of its squares; the product with that divides its sums by the root mean square of the row.
struct FewRowsOp {
  enum class End : std::int32_t {
    store,  ///< out[row, output] = sum
    add,    ///< out[row, output] += sum; `narrow` is that times `norm`, `squares_left` its squares
    gate,   ///< narrow[row, pair] = silu of outputs 0 to 7 of a block row times outputs 8 to 15
  };
  Packed<Place::device> weight;
  DevicePointer<const Bf16> in;  ///< [rows, inputs]; inputs in multiples of 32, for bf16 in wide_rows.h of 64
  int rows = 0;
  End end = End::store;
  DevicePointer<float> out = {};           ///< store: [rows, stride]; add: [rows, outputs]
  int stride = 0;                          ///< store
  DevicePointer<const float> norm = {};    ///< add: [outputs]
  DevicePointer<Bf16> narrow = {};         ///< add: [rows, outputs]; gate: [rows, outputs / 2]
  DevicePointer<float> squares_left = {};  ///< add: [rows, outputs / 16], each the sum of 16 squares
  /// Where it is not null: what a product that adds has left of the row that `in` comes from, [rows, width / 16].
  DevicePointer<const float> squares = {};
  int width = 0;
  float epsilon = 0;  ///< added to the mean square
};
void multiply_few_rows(Stream& stream, const FewRowsOp& op);

/// Rows [first, first + count) of the weights, rounded to bf16; both in multiples of 16, but for a last end.
struct UnpackOp {
  Packed<Place::device> weight;
  int first = 0, count = 0;
  DevicePointer<Bf16> out;  ///< [count, inputs]
};
void unpack(Stream& stream, const UnpackOp& op);

/// out[row] = weight[token of the row]
struct UnpackRowsOp {
  Packed<Place::device> weight;
  RowTokens tokens;          ///< [rows]
  DevicePointer<float> out;  ///< [rows, inputs]
  int rows = 0;
};
void unpack_rows(Stream& stream, const UnpackRowsOp& op);

}  // namespace glimpse::kernels::cuda
