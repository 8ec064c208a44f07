// A model's weights in the memory of a GPU. Matrices of the types that kernels multiply stay quantised (pack.h), others
// become bf16; those that share their input are one matrix. Norms and biases are f32. Read-only after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "glimpse/exec/cuda/products.h"
#include "glimpse/model/model.h"

namespace glimpse::exec::cuda {

using Floats = kernels::cuda::DevicePointer<const float>;

struct LayerMatrices {
  Matrix qkv;  ///< rows of q, then k, then v
  Matrix output;
  Matrix gate_up;  ///< outputs of gate, then up; gates_paired: eight of each in turn
  bool gates_paired = false;
  Matrix down;
  Floats attention_norm, ffn_norm;
  Floats q_bias, k_bias, v_bias, q_norm, k_norm;  ///< null where the model has none
};

/// Bytes that a model's weights take on a device, and whether kernels multiply some of them quantised.
struct WeightMemory {
  std::size_t bytes = 0;
  bool quantised = false;
};
WeightMemory weight_memory(const model::Model& model);

class Weights {
 public:
  /// Converts and copies with so many threads. Throws UserError when the device's memory is short.
  Weights(const model::Model& model, kernels::cuda::Stream& stream, int threads);

  const std::vector<LayerMatrices>& layers() const { return layers_; }
  const Matrix& token_embedding() const { return token_embedding_; }
  const Matrix& output() const { return output_; }
  Floats output_norm() const { return output_norm_; }

 private:
  using Tensors = std::vector<const model::TensorInfo*>;
  Matrix load(const Tensors& tensors);
  MatrixPart load_packed(const Tensors& tensors, kernels::cuda::Packing packing);
  Matrix load_paired(const model::TensorInfo& gate, const model::TensorInfo& up);
  MatrixPart pack_paired(const model::TensorInfo& gate, const model::TensorInfo& up);
  MatrixPart place(const kernels::cuda::PackedLayout& layout, std::span<const std::uint32_t> words);
  MatrixPart load_bf16(const Tensors& tensors, bool paired);
  Floats load_floats(const model::TensorInfo* tensor);

  int threads_;
  kernels::cuda::Array<std::uint32_t> packed_;
  kernels::cuda::Array<kernels::cuda::Bf16> matrices_;
  kernels::cuda::Array<float> floats_;
  std::size_t packed_used_ = 0, matrices_used_ = 0, floats_used_ = 0;
  std::vector<LayerMatrices> layers_;
  Matrix token_embedding_, output_;
  Floats output_norm_;
};

}  // namespace glimpse::exec::cuda
