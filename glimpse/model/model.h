// A model after loading: hyperparameters in one struct, weights by role. Owns the file's mapping. Const after
// construction; any thread may read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "glimpse/model/gguf.h"

namespace glimpse::model {

enum class RopeScaling : std::uint8_t { none, linear, yarn };

/// Rotary embedding as libllama drives ggml: ggml_rope_ext(x, positions, frequency_factors, dims,
/// neox ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL, original_context, base, 1.0f / factor, ext_factor, attn_factor,
/// beta_fast, beta_slow) for every kind of scaling. For yarn, attn_factor already cancels the 1 + 0.1 log(factor) by
/// which ggml multiplies and puts libllama's own in its place.
struct Rope {
  bool neox = false;  ///< true: pairs (i, i + dims/2); false: pairs (2i, 2i + 1)
  int dims = 0;       ///< rotated dimensions of a head, even
  float base = 10000;
  RopeScaling scaling = RopeScaling::none;
  float factor = 1;  ///< linear, yarn: positions are divided by it
  int original_context = 0;
  float beta_fast = 32, beta_slow = 1, ext_factor = 0, attn_factor = 1;  ///< yarn
  const float* frequency_factors = nullptr;  ///< [dims / 2] divisors of frequencies (Llama 3), or null
};

struct Config {
  std::string architecture;
  std::string name;
  int layers = 0, hidden = 0, feed_forward = 0;
  int heads = 0, kv_heads = 0, head_dim = 0;
  int vocabulary = 0;
  int context = 0;
  float rms_epsilon = 1e-5f;
  Rope rope;
};

/// Null pointers: the architecture has no such tensor.
struct LayerWeights {
  const TensorInfo *attention_norm = nullptr, *q = nullptr, *k = nullptr, *v = nullptr, *output = nullptr;
  const TensorInfo *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr;  ///< qwen2
  const TensorInfo *q_norm = nullptr, *k_norm = nullptr;                     ///< qwen3, [head_dim]
  const TensorInfo *ffn_norm = nullptr, *gate = nullptr, *up = nullptr, *down = nullptr;
};

/// What an architecture is, in data: one file each in model/arch/.
struct Architecture {
  const char* name;  ///< general.architecture
  bool rope_neox;
  bool qkv_bias;
  bool qk_norm;
  bool rope_factors;  ///< rope_freqs.weight may divide the frequencies (Llama 3)
};
Architecture llama_architecture();
Architecture qwen2_architecture();
Architecture qwen3_architecture();

class Model {
 public:
  /// Throws UserError: not a GGUF, an architecture or a feature (experts, MLA, sliding window) that is not supported,
  /// by name; a missing tensor; a shape or type that does not fit.
  explicit Model(const std::filesystem::path& path);
  explicit Model(GgufFile file);

  const Config& config() const { return config_; }
  const GgufFile& file() const { return file_; }
  const std::vector<LayerWeights>& layers() const { return layers_; }
  const TensorInfo& token_embedding() const { return *token_embedding_; }
  const TensorInfo& output_norm() const { return *output_norm_; }
  const TensorInfo& output() const { return *output_; }  ///< the token embedding when tied

 private:
  GgufFile file_;
  Config config_;
  std::vector<LayerWeights> layers_;
  const TensorInfo* token_embedding_ = nullptr;
  const TensorInfo* output_norm_ = nullptr;
  const TensorInfo* output_ = nullptr;
};

}  // namespace glimpse::model
