// Weights in the layout that ggml multiplies fastest here: matrices that share their input are fused row-wise, put into
// ggml's repacked buffer types where those fit, else copied to huge pages. Owns all of that; the embedding and norms
// stay in the file's mapping. Read-only after construction.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "glimpse/base/buffer.h"
#include "glimpse/exec/ggml/owned.h"
#include "glimpse/model/model.h"

namespace glimpse::exec {

/// One or more products of the same input: a single fused tensor, or one each where their types differ.
struct Projection {
  std::vector<ggml_tensor*> parts;
};

struct LayerTensors {
  Projection qkv;  ///< fused: rows of q, then k, then v
  ggml_tensor* output = nullptr;
  Projection gate_up;  ///< fused: rows of gate, then up
  ggml_tensor* down = nullptr;
};

class Weights {
 public:
  explicit Weights(const model::Model& model);
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  const std::vector<LayerTensors>& layers() const { return layers_; }
  ggml_tensor* token_embedding() const { return token_embedding_; }
  ggml_tensor* output() const { return output_; }
  /// True when ggml repacked some: its products of several rows from there may differ from those of one in their last
  /// bits (Q4_K does, Q4_0 and IQ4_NL did not with AVX2).
  bool any_repacked() const { return !repacked_.empty(); }

 private:
  ggml_tensor* load(std::span<const model::TensorInfo* const> parts);
  Projection fuse(std::span<const model::TensorInfo* const> parts);
  bool load_repacked(ggml_tensor* tensor, std::span<const model::TensorInfo* const> parts);

  ContextPointer context_;
  std::vector<BufferPointer> repacked_;
  std::vector<HostBuffer> plain_;
  std::size_t plain_used_ = 0;
  std::vector<LayerTensors> layers_;
  ggml_tensor* token_embedding_ = nullptr;
  ggml_tensor* output_ = nullptr;
};

}  // namespace glimpse::exec
