#include "glimpse/model/model.h"

#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "glimpse/model/config.h"
#include "glimpse/model/file_error.h"
#include "glimpse/model/vocabulary_check.h"

namespace glimpse::model {
namespace {

/// Why a tensor that no role takes stops the load, by a part of its name.
struct UnusedReason {
  std::string_view part;
  std::string_view feature;
};
constexpr UnusedReason kUnusedReasons[] = {
    {"_exps", "a mixture of experts"},
    {"_shexp", "a mixture of experts"},
    {"ffn_gate_inp", "a mixture of experts"},
    {"ffn_gate.0", "a mixture of experts"},
    {"attn_kv_a", "multi-head latent attention (MLA)"},
    {"attn_q_a", "multi-head latent attention (MLA)"},
    {"attn_qkv", "fused query, key and value weights"},
    {"attn_sinks", "attention sinks with weights"},
    {"rope_factors", "longrope rope scaling"},
    {"rope_freqs", "rope frequency factors in this architecture"},
    {"cls.", "a classification head"},
    {"cls_out", "a classification head"},
    {"nextn", "layers that predict several tokens"},
    {"scale", "tensors with separate scales"},
};

/// Old converters wrote it; nobody reads it.
constexpr std::string_view kHarmless = "attn_rot_embd.weight";

std::string shape_text(const TensorInfo& tensor) {
  int dimensions = 4;
  while (dimensions > 1 && tensor.shape[dimensions - 1] == 1) --dimensions;
  return fmt::format("[{}]", fmt::join(tensor.shape.begin(), tensor.shape.begin() + dimensions, ", "));
}

/// Takes tensors by name, with the checks that the executor relies on, and remembers which were taken.
class Roles {
 public:
  explicit Roles(const GgufFile& file) : file_(file) {}

  const TensorInfo* matrix(const std::string& name, std::int64_t columns, std::int64_t rows) {
    const TensorInfo& tensor = take(name);
    check_shape(tensor, columns, rows);
    const auto type = static_cast<ggml_type>(tensor.type);
    // ggml aborts on types without a dot product; those that have one can also be read row by row.
    if (ggml_get_type_traits_cpu(type)->vec_dot == nullptr) {
      fail_file(file_.label(), "tensor '{}' is of type {}, which cannot be multiplied", name, ggml_type_name(type));
    }
    return &tensor;
  }

  const TensorInfo* vector(const std::string& name, std::int64_t length) {
    const TensorInfo& tensor = take(name);
    check_shape(tensor, length, 1);
    if (tensor.type != GGML_TYPE_F32) {
      fail_file(file_.label(), "tensor '{}' is of type {}; norms and biases must be F32", name,
                ggml_type_name(static_cast<ggml_type>(tensor.type)));
    }
    return &tensor;
  }

  void mark(std::string_view name) {
    if (const TensorInfo* tensor = file_.find(name)) taken_.insert(tensor);
  }

  /// A tensor that the arithmetic would leave out means another arithmetic than ours.
  void refuse_unused(const Config& config) const {
    for (const TensorInfo& tensor : file_.tensors()) {
      if (taken_.count(&tensor) != 0 || std::string_view(tensor.name).ends_with(kHarmless)) continue;
      for (const UnusedReason& reason : kUnusedReasons) {
        if (tensor.name.find(reason.part) == std::string::npos) continue;
        fail_file(file_.label(), "uses {} (tensor '{}'), which is not supported", reason.feature, tensor.name);
      }
      fail_file(file_.label(), "tensor '{}' has no place in a {} model of {} layers", tensor.name, config.architecture,
                config.layers);
    }
  }

 private:
  const TensorInfo& take(const std::string& name) {
    const TensorInfo* tensor = file_.find(name);
    if (tensor == nullptr) fail_file(file_.label(), "tensor '{}' is missing", name);
    taken_.insert(tensor);
    return *tensor;
  }

  void check_shape(const TensorInfo& tensor, std::int64_t columns, std::int64_t rows) const {
    if (tensor.shape == std::array<std::int64_t, 4>{columns, rows, 1, 1}) return;
    fail_file(file_.label(), "tensor '{}' has shape {}; expected [{}{}]", tensor.name, shape_text(tensor), columns,
              rows == 1 ? "" : fmt::format(", {}", rows));
  }

  const GgufFile& file_;
  std::unordered_set<const TensorInfo*> taken_;
};

LayerWeights layer_weights(Roles& roles, const Architecture& architecture, const Config& config, int layer) {
  const std::int64_t hidden = config.hidden, feed_forward = config.feed_forward;
  const std::int64_t q_rows = std::int64_t{config.heads} * config.head_dim;
  const std::int64_t kv_rows = std::int64_t{config.kv_heads} * config.head_dim;
  const auto name = [layer](std::string_view role) { return fmt::format("blk.{}.{}", layer, role); };
  LayerWeights weights;
  weights.attention_norm = roles.vector(name("attn_norm.weight"), hidden);
  weights.q = roles.matrix(name("attn_q.weight"), hidden, q_rows);
  weights.k = roles.matrix(name("attn_k.weight"), hidden, kv_rows);
  weights.v = roles.matrix(name("attn_v.weight"), hidden, kv_rows);
  weights.output = roles.matrix(name("attn_output.weight"), q_rows, hidden);
  if (architecture.qkv_bias) {
    weights.q_bias = roles.vector(name("attn_q.bias"), q_rows);
    weights.k_bias = roles.vector(name("attn_k.bias"), kv_rows);
    weights.v_bias = roles.vector(name("attn_v.bias"), kv_rows);
  }
  if (architecture.qk_norm) {
    weights.q_norm = roles.vector(name("attn_q_norm.weight"), config.head_dim);
    weights.k_norm = roles.vector(name("attn_k_norm.weight"), config.head_dim);
  }
  weights.ffn_norm = roles.vector(name("ffn_norm.weight"), hidden);
  weights.gate = roles.matrix(name("ffn_gate.weight"), hidden, feed_forward);
  weights.up = roles.matrix(name("ffn_up.weight"), hidden, feed_forward);
  weights.down = roles.matrix(name("ffn_down.weight"), feed_forward, hidden);
  return weights;
}

/// Before missing tensors are told: experts replace the tensors that would be missed.
void refuse_named_features(const GgufFile& file) {
  for (const TensorInfo& tensor : file.tensors()) {
    for (const std::string_view part : {"_exps.", "ffn_gate_inp", "attn_kv_a", "attn_qkv"}) {
      if (tensor.name.find(part) == std::string::npos) continue;
      const auto* reason =
          std::find_if(std::begin(kUnusedReasons), std::end(kUnusedReasons),
                       [&](const UnusedReason& r) { return tensor.name.find(r.part) != std::string::npos; });
      fail_file(file.label(), "uses {} (tensor '{}'), which is not supported", reason->feature, tensor.name);
    }
  }
}

GgufFile opened(const std::filesystem::path& path) {
  require_file(path, "give the path of a GGUF file; `make demo` leaves one, build/demo/model.gguf");
  return GgufFile(path);
}

}  // namespace

Model::Model(const std::filesystem::path& path) : Model(opened(path)) {}

Model::Model(GgufFile file) : file_(std::move(file)) {
  const Architecture architecture = find_architecture(file_);
  config_ = read_config(file_, architecture);
  config_.vocabulary = static_cast<int>(check_vocabulary(file_.metadata(), file_.label()));
  refuse_named_features(file_);
  Roles roles(file_);
  token_embedding_ = roles.matrix("token_embd.weight", config_.hidden, config_.vocabulary);
  output_norm_ = roles.vector("output_norm.weight", config_.hidden);
  output_ = file_.find("output.weight") == nullptr ? token_embedding_
                                                   : roles.matrix("output.weight", config_.hidden, config_.vocabulary);
  layers_.reserve(static_cast<std::size_t>(config_.layers));
  for (int layer = 0; layer < config_.layers; ++layer) {
    layers_.push_back(layer_weights(roles, architecture, config_, layer));
  }
  if (config_.rope.frequency_factors != nullptr) roles.mark("rope_freqs.weight");
  roles.refuse_unused(config_);
}

}  // namespace glimpse::model
