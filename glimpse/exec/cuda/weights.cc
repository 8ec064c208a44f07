#include "glimpse/exec/cuda/weights.h"

#include <ggml.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <thread>

#include "glimpse/base/dtype.h"
#include "glimpse/base/error.h"
#include "glimpse/exec/cuda/pack.h"

namespace glimpse::exec::cuda {
namespace {

using kernels::cuda::Bf16;

/// Elements: 16 bytes of f32, so that what follows is aligned for every kernel.
constexpr std::size_t kAligned = 8;

std::size_t aligned(std::size_t count, std::size_t to = kAligned) {
  return (count + to - 1) / to * to;
}

/// Matrices begin with a line of the cache, as super blocks in shared memory do. In words, and in bf16.
constexpr std::size_t kAlignedWords = 32, kAlignedHalves = 64;

std::size_t elements(const model::TensorInfo* tensor) {
  if (tensor == nullptr) return 0;
  std::size_t count = 1;
  for (const std::int64_t extent : tensor->shape) count *= static_cast<std::size_t>(extent);
  return count;
}

using Tensors = std::vector<const model::TensorInfo*>;

std::vector<Tensors> matrices_of(const model::LayerWeights& layer) {
  return {{layer.q, layer.k, layer.v}, {layer.output}, {layer.gate, layer.up}, {layer.down}};
}
Tensors floats_of(const model::LayerWeights& layer) {
  return {layer.attention_norm, layer.ffn_norm, layer.q_bias, layer.k_bias, layer.v_bias, layer.q_norm, layer.k_norm};
}

/// Tensors of one matrix that are one part of it.
struct Group {
  Tensors tensors;
  std::optional<kernels::cuda::Packing> packing;

  int outputs() const {
    std::int64_t sum = 0;
    for (const model::TensorInfo* tensor : tensors) sum += tensor->shape[1];
    return static_cast<int>(sum);
  }
  kernels::cuda::PackedLayout layout() const {
    return {*packing, outputs(), static_cast<int>(tensors.front()->shape[0])};
  }
};

/// Neighbours of one type are one part where each but the last ends with a block row.
std::vector<Group> groups_of(const Tensors& tensors) {
  std::vector<Group> groups;
  for (const model::TensorInfo* tensor : tensors) {
    const auto packing = packing_of(*tensor);
    const bool joins = !groups.empty() && groups.back().packing == packing &&
                       (!packing || groups.back().outputs() % kernels::cuda::kPackedRows == 0);
    if (!joins) groups.push_back({{}, packing});
    groups.back().tensors.push_back(tensor);
  }
  return groups;
}

/// Whether eight outputs of each in turn are block rows; they are as large as both behind each other.
bool can_pair(const model::TensorInfo& gate, const model::TensorInfo& up) {
  return packing_of(gate) == packing_of(up) && gate.shape == up.shape &&
         gate.shape[1] % kernels::cuda::kPackedRows == 0;
}

struct Counts {
  std::size_t words = 0, matrices = 0, floats = 0;

  void add_matrix(const Tensors& tensors) {
    for (const Group& group : groups_of(tensors)) {
      if (group.packing) {
        words += aligned(group.layout().words(), kAlignedWords);
      } else {
        for (const model::TensorInfo* tensor : group.tensors) matrices += elements(tensor);
        matrices = aligned(matrices, kAlignedHalves);
      }
    }
  }
};

Counts counts_of(const model::Model& model) {
  Counts counts;
  counts.add_matrix({&model.token_embedding()});
  if (&model.output() != &model.token_embedding()) counts.add_matrix({&model.output()});
  counts.floats = aligned(elements(&model.output_norm()));
  for (const model::LayerWeights& layer : model.layers()) {
    for (const Tensors& tensors : matrices_of(layer)) counts.add_matrix(tensors);
    for (const model::TensorInfo* tensor : floats_of(layer)) counts.floats += aligned(elements(tensor));
  }
  return counts;
}

/// Calls work(begin, end) for the pieces of [0, count), each on a thread of its own.
template <class Work>
void divide(std::size_t count, int threads, const Work& work) {
  const std::size_t each = (count + static_cast<std::size_t>(threads) - 1) / static_cast<std::size_t>(threads);
  std::vector<std::jthread> workers;
  for (std::size_t begin = 0; begin < count; begin += each) {
    workers.emplace_back([&work, begin, end = std::min(count, begin + each)] { work(begin, end); });
  }
}

/// A row of a tensor as bf16; `floats`: room for one.
void convert_row(const model::TensorInfo& tensor, std::size_t row, std::span<float> floats, Bf16* to) {
  const auto type = static_cast<ggml_type>(tensor.type);
  const std::size_t row_bytes = ggml_row_size(type, tensor.shape[0]);
  const std::byte* const from = tensor.data + row * row_bytes;
  if (type == GGML_TYPE_BF16) {
    std::memcpy(to, from, row_bytes);
    return;
  }
  if (type == GGML_TYPE_F32) {
    std::memcpy(floats.data(), from, row_bytes);
  } else {
    ggml_get_type_traits(type)->to_float(from, floats.data(), tensor.shape[0]);
  }
  for (std::size_t i = 0; i < floats.size(); ++i) to[i] = bf16_from_float(floats[i]);
}

/// The tensor of an output of a matrix, and its row there. Tensors follow each other, or two give eight rows in turn.
struct SourceRow {
  const model::TensorInfo* tensor;
  std::size_t row;
};
SourceRow source_of(const Tensors& tensors, bool paired, std::size_t output) {
  constexpr std::size_t kOfEach = kernels::cuda::kPackedRows / 2;
  if (paired) {
    return {tensors[output / kOfEach % 2], output / kernels::cuda::kPackedRows * kOfEach + output % kOfEach};
  }
  for (const model::TensorInfo* tensor : tensors) {
    const auto rows = static_cast<std::size_t>(tensor->shape[1]);
    if (output < rows) return {tensor, output};
    output -= rows;
  }
  check(false, "an output of the matrix");
  return {};
}

}  // namespace

WeightMemory weight_memory(const model::Model& model) {
  const Counts counts = counts_of(model);
  return {counts.words * sizeof(std::uint32_t) + counts.matrices * sizeof(Bf16) + counts.floats * sizeof(float),
          counts.words > 0};
}

Weights::Weights(const model::Model& model, kernels::cuda::Stream& stream, int threads) : threads_(threads) {
  const Counts counts = counts_of(model);
  packed_ = kernels::cuda::Array<std::uint32_t>(stream, counts.words);
  matrices_ = kernels::cuda::Array<Bf16>(stream, counts.matrices);
  floats_ = kernels::cuda::Array<float>(stream, counts.floats);
  token_embedding_ = load({&model.token_embedding()});
  output_ = &model.output() == &model.token_embedding() ? token_embedding_ : load({&model.output()});
  output_norm_ = load_floats(&model.output_norm());
  for (const model::LayerWeights& layer : model.layers()) {
    const std::vector<Tensors> matrices = matrices_of(layer);
    LayerMatrices& to = layers_.emplace_back();
    to.qkv = load(matrices[0]);
    to.output = load(matrices[1]);
    to.gates_paired = can_pair(*layer.gate, *layer.up);
    to.gate_up = to.gates_paired ? load_paired(*layer.gate, *layer.up) : load(matrices[2]);
    to.down = load(matrices[3]);
    to.attention_norm = load_floats(layer.attention_norm);
    to.ffn_norm = load_floats(layer.ffn_norm);
    to.q_bias = load_floats(layer.q_bias);
    to.k_bias = load_floats(layer.k_bias);
    to.v_bias = load_floats(layer.v_bias);
    to.q_norm = load_floats(layer.q_norm);
    to.k_norm = load_floats(layer.k_norm);
  }
}

Matrix Weights::load(const Tensors& tensors) {
  Matrix matrix;
  matrix.inputs = static_cast<int>(tensors.front()->shape[0]);
  for (const Group& group : groups_of(tensors)) {
    matrix.parts.push_back(group.packing ? load_packed(group.tensors, *group.packing)
                                         : load_bf16(group.tensors, false));
    matrix.outputs += matrix.parts.back().outputs;
  }
  return matrix;
}

MatrixPart Weights::load_packed(const Tensors& tensors, kernels::cuda::Packing packing) {
  const Group group{tensors, packing};
  const kernels::cuda::PackedLayout layout = group.layout();
  std::vector<std::uint32_t> words(layout.words());
  std::size_t at = 0;
  for (const model::TensorInfo* tensor : tensors) {
    const auto block_rows =
        (static_cast<std::size_t>(tensor->shape[1]) + kernels::cuda::kPackedRows - 1) / kernels::cuda::kPackedRows;
    divide(block_rows, threads_, [&](std::size_t first, std::size_t last) {
      pack({*tensor, layout, at, first, last}, words);
    });
    at += block_rows;
  }
  return place(layout, words);
}

Matrix Weights::load_paired(const model::TensorInfo& gate, const model::TensorInfo& up) {
  const bool packs = packing_of(gate).has_value();
  const MatrixPart part = packs ? pack_paired(gate, up) : load_bf16({&gate, &up}, true);
  return {part.outputs, static_cast<int>(gate.shape[0]), {part}};
}

MatrixPart Weights::pack_paired(const model::TensorInfo& gate, const model::TensorInfo& up) {
  const kernels::cuda::PackedLayout layout = Group{{&gate, &up}, packing_of(gate)}.layout();
  std::vector<std::uint32_t> words(layout.words());
  divide(layout.block_rows(), threads_, [&](std::size_t first, std::size_t last) {
    pack({gate, layout, 0, first, last, &up}, words);
  });
  return place(layout, words);
}

MatrixPart Weights::place(const kernels::cuda::PackedLayout& layout, std::span<const std::uint32_t> words) {
  packed_.set(words, packed_used_);
  MatrixPart part;
  part.outputs = layout.outputs;
  part.packed = {layout, packed_.constant().raw() + packed_used_};
  packed_used_ += aligned(words.size(), kAlignedWords);
  return part;
}

MatrixPart Weights::load_bf16(const Tensors& tensors, bool paired) {
  const auto width = static_cast<std::size_t>(tensors.front()->shape[0]);
  const auto outputs = static_cast<std::size_t>(Group{tensors, {}}.outputs());
  MatrixPart part;
  part.outputs = static_cast<int>(outputs);
  part.packed = {{kernels::cuda::kBf16Rows, part.outputs, static_cast<int>(width)},
                 reinterpret_cast<const std::uint32_t*>(matrices_.constant().raw() + matrices_used_)};
  // In pieces, so that a large matrix does not need its whole size of the host's memory twice.
  const std::size_t piece = std::max<std::size_t>(1, (std::size_t{64} << 20) / (width * sizeof(Bf16)));
  std::vector<Bf16> converted(std::min(outputs, piece) * width);
  for (std::size_t first = 0; first < outputs; first += piece) {
    const std::size_t count = std::min(piece, outputs - first);
    divide(count, threads_, [&](std::size_t begin, std::size_t end) {
      std::vector<float> floats(width);
      for (std::size_t i = begin; i < end; ++i) {
        const SourceRow from = source_of(tensors, paired, first + i);
        convert_row(*from.tensor, from.row, floats, converted.data() + i * width);
      }
    });
    matrices_.set({converted.data(), count * width}, matrices_used_ + first * width);
  }
  matrices_used_ = aligned(matrices_used_ + outputs * width, kAlignedHalves);
  return part;
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
