#include "glimpse/exec/cuda/weights.h"

#include <ggml.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "glimpse/base/dtype.h"
#include "glimpse/base/error.h"

namespace glimpse::exec::cuda {
namespace {

using kernels::cuda::Bf16;

/// Elements: 16 bytes of f32, so that what follows is aligned for every kernel.
constexpr std::size_t kAligned = 8;

std::size_t aligned(std::size_t count) {
  return (count + kAligned - 1) / kAligned * kAligned;
}

std::size_t elements(const model::TensorInfo* tensor) {
  if (tensor == nullptr) return 0;
  std::size_t count = 1;
  for (const std::int64_t extent : tensor->shape) count *= static_cast<std::size_t>(extent);
  return count;
}

std::vector<const model::TensorInfo*> matrices_of(const model::LayerWeights& layer) {
  return {layer.q, layer.k, layer.v, layer.output, layer.gate, layer.up, layer.down};
}
std::vector<const model::TensorInfo*> floats_of(const model::LayerWeights& layer) {
  return {layer.attention_norm, layer.ffn_norm, layer.q_bias, layer.k_bias, layer.v_bias, layer.q_norm, layer.k_norm};
}

struct Counts {
  std::size_t matrices = 0, floats = 0;
};

Counts counts_of(const model::Model& model) {
  Counts counts;
  counts.matrices = aligned(elements(&model.token_embedding()));
  if (&model.output() != &model.token_embedding()) counts.matrices += aligned(elements(&model.output()));
  counts.floats = aligned(elements(&model.output_norm()));
  for (const model::LayerWeights& layer : model.layers()) {
    for (const model::TensorInfo* tensor : matrices_of(layer)) counts.matrices += aligned(elements(tensor));
    for (const model::TensorInfo* tensor : floats_of(layer)) counts.floats += aligned(elements(tensor));
  }
  return counts;
}

/// Rows [first, last) of a tensor as bf16.
void convert_rows(const model::TensorInfo& tensor, std::size_t first, std::size_t last, Bf16* to) {
  const auto type = static_cast<ggml_type>(tensor.type);
  const auto width = static_cast<std::size_t>(tensor.shape[0]);
  const std::size_t row_bytes = ggml_row_size(type, static_cast<std::int64_t>(width));
  const auto widen = ggml_get_type_traits(type)->to_float;
  std::vector<float> floats(width);
  for (std::size_t row = first; row < last; ++row) {
    const std::byte* from = tensor.data + row * row_bytes;
    Bf16* out = to + (row - first) * width;
    if (type == GGML_TYPE_BF16) {
      std::memcpy(out, from, row_bytes);
      continue;
    }
    if (type == GGML_TYPE_F32) {
      std::memcpy(floats.data(), from, row_bytes);
    } else {
      widen(from, floats.data(), static_cast<std::int64_t>(width));
    }
    for (std::size_t i = 0; i < width; ++i) out[i] = bf16_from_float(floats[i]);
  }
}

}  // namespace

std::size_t weight_bytes(const model::Model& model) {
  const Counts counts = counts_of(model);
  return counts.matrices * sizeof(Bf16) + counts.floats * sizeof(float);
}

Weights::Weights(const model::Model& model, kernels::cuda::Stream& stream, int threads) : threads_(threads) {
  const Counts counts = counts_of(model);
  matrices_ = kernels::cuda::Array<Bf16>(stream, counts.matrices);
  floats_ = kernels::cuda::Array<float>(stream, counts.floats);
  token_embedding_ = load({&model.token_embedding()});
  output_ = &model.output() == &model.token_embedding() ? token_embedding_ : load({&model.output()});
  output_norm_ = load_floats(&model.output_norm());
  for (const model::LayerWeights& layer : model.layers()) {
    LayerMatrices& to = layers_.emplace_back();
    to.qkv = load({layer.q, layer.k, layer.v});
    to.output = load({layer.output});
    to.gate_up = load({layer.gate, layer.up});
    to.down = load({layer.down});
    to.attention_norm = load_floats(layer.attention_norm);
    to.ffn_norm = load_floats(layer.ffn_norm);
    to.q_bias = load_floats(layer.q_bias);
    to.k_bias = load_floats(layer.k_bias);
    to.v_bias = load_floats(layer.v_bias);
    to.q_norm = load_floats(layer.q_norm);
    to.k_norm = load_floats(layer.k_norm);
  }
}

Matrix Weights::load(std::initializer_list<const model::TensorInfo*> parts) {
  Matrix matrix;
  matrix.inputs = static_cast<int>((*parts.begin())->shape[0]);
  matrix.data = matrices_.constant().raw() + matrices_used_;
  std::size_t at = matrices_used_;
  for (const model::TensorInfo* part : parts) {
    const auto rows = static_cast<std::size_t>(part->shape[1]);
    const auto width = static_cast<std::size_t>(part->shape[0]);
    // In pieces, so that a large tensor does not need its whole size of the host's memory twice.
    const std::size_t piece = std::max<std::size_t>(1, (std::size_t{64} << 20) / (width * sizeof(Bf16)));
    std::vector<Bf16> converted(std::min(rows, piece) * width);
    for (std::size_t first = 0; first < rows; first += piece) {
      const std::size_t count = std::min(piece, rows - first);
      const std::size_t each = (count + static_cast<std::size_t>(threads_) - 1) / static_cast<std::size_t>(threads_);
      std::vector<std::jthread> workers;
      for (std::size_t begin = 0; begin < count; begin += each) {
        workers.emplace_back([&, begin] {
          convert_rows(*part, first + begin, first + std::min(count, begin + each), converted.data() + begin * width);
        });
      }
      workers.clear();  // waits for them
      matrices_.set({converted.data(), count * width}, at + first * width);
    }
    at += rows * width;
    matrix.outputs += static_cast<int>(rows);
  }
  matrices_used_ = aligned(at);
  return matrix;
}

Floats Weights::load_floats(const model::TensorInfo* tensor) {
  if (tensor == nullptr) return {};
  const std::size_t count = elements(tensor);
  floats_.set({reinterpret_cast<const float*>(tensor->data), count}, floats_used_);
  const Floats at = floats_.constant().raw() + floats_used_;
  floats_used_ += aligned(count);
  return at;
}

}  // namespace glimpse::exec::cuda
