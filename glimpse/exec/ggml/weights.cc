#include "glimpse/exec/ggml/weights.h"

#include <fmt/format.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "glimpse/base/error.h"
#include "glimpse/base/resources.h"

namespace glimpse::exec {
namespace {

constexpr std::size_t kArena = std::size_t{64} << 20;
constexpr std::size_t kAlignment = 64;

ggml_type type_of(const model::TensorInfo& tensor) {
  return static_cast<ggml_type>(tensor.type);
}

/// The CPU's extra buffer types: layouts that its matrix kernels prefer.
ggml_backend_buffer_type_t* extra_buffer_types(ggml_backend_dev_t device) {
  auto* registry = ggml_backend_dev_backend_reg(device);
  auto get = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(registry, "ggml_backend_dev_get_extra_bufts"));
  return get == nullptr ? nullptr : get(device);
}

/// Asks the device whether it multiplies `weight` when it lies in a buffer of `type`.
bool multiplies_from(ggml_backend_dev_t device, ggml_backend_buffer_type_t type, ggml_tensor* weight) {
  const ContextPointer scratch = make_context(ggml_tensor_overhead() * 4);
  ggml_tensor* input = ggml_new_tensor_2d(scratch.get(), GGML_TYPE_F32, weight->ne[0], 512);
  ggml_tensor* product = ggml_mul_mat(scratch.get(), weight, input);
  const BufferPointer buffer(ggml_backend_buft_alloc_buffer(type, 0));
  weight->buffer = buffer.get();
  const bool fits = buffer != nullptr && ggml_backend_dev_supports_op(device, product);
  weight->buffer = nullptr;
  return fits;
}

std::vector<std::byte> joined(std::span<const model::TensorInfo* const> parts, std::size_t bytes) {
  std::vector<std::byte> all;
  all.reserve(bytes);
  for (const model::TensorInfo* part : parts) all.insert(all.end(), part->data, part->data + part->bytes);
  return all;
}

}  // namespace

Weights::Weights(const model::Model& model) {
  ggml_cpu_init();
  const std::size_t tensors = model.layers().size() * 8 + 8;
  context_ = make_context(ggml_tensor_overhead() * tensors);
  const AbortTrap trap("weights");

  const model::TensorInfo& embedding = model.token_embedding();
  token_embedding_ = ggml_new_tensor_2d(context_.get(), type_of(embedding), embedding.shape[0], embedding.shape[1]);
  token_embedding_->data = const_cast<std::byte*>(embedding.data);
  for (const model::LayerWeights& layer : model.layers()) {
    LayerTensors tensors_of_layer;
    tensors_of_layer.qkv = fuse(std::vector{layer.q, layer.k, layer.v});
    tensors_of_layer.output = load(std::vector{layer.output});
    tensors_of_layer.gate_up = fuse(std::vector{layer.gate, layer.up});
    tensors_of_layer.down = load(std::vector{layer.down});
    layers_.push_back(std::move(tensors_of_layer));
  }
  output_ = load(std::vector{&model.output()});
}

Projection Weights::fuse(std::span<const model::TensorInfo* const> parts) {
  const bool same = std::all_of(parts.begin(), parts.end(),
                                [&](const model::TensorInfo* part) { return part->type == parts[0]->type; });
  Projection projection;
  if (same) {
    projection.parts.push_back(load(parts));
    return projection;
  }
  for (std::size_t i = 0; i < parts.size(); ++i) projection.parts.push_back(load(parts.subspan(i, 1)));
  return projection;
}

bool Weights::load_repacked(ggml_tensor* tensor, std::span<const model::TensorInfo* const> parts) {
  ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  ggml_backend_buffer_type_t* types = extra_buffer_types(device);
  for (; types != nullptr && *types != nullptr; ++types) {
    if (!multiplies_from(device, *types, tensor)) continue;
    const std::size_t bytes = ggml_backend_buft_get_alloc_size(*types, tensor);
    BufferPointer owned(ggml_backend_buft_alloc_buffer(*types, bytes));
    if (owned == nullptr) {
      throw UserError(fmt::format("no memory for weights ({} MiB); a more quantised model needs less", bytes >> 20));
    }
    ggml_backend_buffer* buffer = owned.get();
    repacked_.push_back(std::move(owned));
    void* base = ggml_backend_buffer_get_base(buffer);
    madvise(reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(base) + 4095) / 4096 * 4096), bytes / 4096 * 4096,
            MADV_HUGEPAGE);  // a wish; refused for small buffers
    ggml_backend_tensor_alloc(buffer, tensor, base);
    const std::vector<std::byte> data = joined(parts, ggml_nbytes(tensor));
    ggml_backend_tensor_set(tensor, data.data(), 0, data.size());
    return true;
  }
  return false;
}

ggml_tensor* Weights::load(std::span<const model::TensorInfo* const> parts) {
  std::int64_t rows = 0;
  for (const model::TensorInfo* part : parts) rows += part->shape[1];
  ggml_tensor* tensor = ggml_new_tensor_2d(context_.get(), type_of(*parts[0]), parts[0]->shape[0], rows);
  if (load_repacked(tensor, parts)) return tensor;
  const std::size_t bytes = (ggml_nbytes(tensor) + kAlignment - 1) / kAlignment * kAlignment;
  if (plain_.empty() || plain_.back().size() - plain_used_ < bytes) {
    plain_.emplace_back(std::max(kArena, bytes));
    plain_used_ = 0;
  }
  std::byte* target = plain_.back().data() + plain_used_;
  plain_used_ += bytes;
  tensor->data = target;
  for (const model::TensorInfo* part : parts) {
    std::memcpy(target, part->data, part->bytes);
    target += part->bytes;
  }
  return tensor;
}

}  // namespace glimpse::exec
