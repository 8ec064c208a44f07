// What a pass holds on a GPU between its kernels, for as many rows as the largest pass so far had.
#pragma once

#include "glimpse/kernels/cuda/layers.h"
#include "glimpse/model/model.h"

namespace glimpse::exec::cuda {

/// Owned by an executor. Letters in brackets as in kernels/cuda/layers.h.
struct Activations {
  template <class T>
  using Array = kernels::cuda::Array<T>;
  using Bf16 = kernels::cuda::Bf16;

  Array<float> residual, rest;   ///< [R, hidden]; of the rows with logits
  Array<float> delta;            ///< [R, hidden] what a block adds to the residual
  Array<Bf16> normalised;        ///< [R, hidden]
  Array<float> squares;          ///< [R, hidden / 16] sums of 16 squares of the residual
  Array<float> qkv;              ///< [R, (H + 2 KV heads) d]
  Array<float> q;                ///< [R, H, d]
  Array<float> attended, taken;  ///< [R, H, d]; of the rows with logits
  Array<Bf16> narrowed;          ///< [R, H, d]
  Array<float> gate_up;          ///< [R, 2 feed_forward]
  Array<Bf16> activated;         ///< [R, feed_forward]
  Array<float> logits;           ///< [outputs, vocabulary]
  int moves = 0;                 ///< how often memory was taken anew: pointers of before lead nowhere

  /// Bytes for so many rows, without logits.
  static std::size_t bytes(const model::Config& config, std::size_t rows);
  /// Room for a pass. Throws UserError when the device's memory is short.
  void reserve(kernels::cuda::Stream& stream, const model::Config& config, std::size_t rows, std::size_t outputs);

 private:
  std::size_t rows_ = 0, outputs_ = 0;
};

}  // namespace glimpse::exec::cuda
