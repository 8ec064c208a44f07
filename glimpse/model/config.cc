#include "glimpse/model/config.h"

#include <ggml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>

#include "glimpse/base/suggest.h"
#include "glimpse/model/file_error.h"

namespace glimpse::model {
namespace {

constexpr std::int64_t kMaxLayers = 1024, kMaxHidden = 1 << 17, kMaxFeedForward = 1 << 20, kMaxHeads = 1024;
constexpr std::int64_t kMaxContext = 1 << 30, kMaxHeadDim = 256;
constexpr double kLargestFloat = std::numeric_limits<float>::max();

/// Reads `ARCH.key` values with their ranges; errors name the full key.
class Keys {
 public:
  Keys(const GgufFile& file, std::string_view prefix) : file_(file), prefix_(prefix) {}

  template <class... Arguments>
  [[noreturn]] void fail(fmt::format_string<Arguments...> what, Arguments&&... arguments) const {
    fail_file(file_.label(), what, std::forward<Arguments>(arguments)...);
  }

  std::string full(std::string_view key) const { return fmt::format("{}.{}", prefix_, key); }
  const MetaValue* find(std::string_view key) const { return file_.metadata().find(full(key)); }

  std::optional<std::int64_t> integer(std::string_view key, std::int64_t least, std::int64_t most) const {
    const MetaValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    const auto* number = std::get_if<std::int64_t>(&value->value);
    if (number == nullptr || value->type == MetaType::boolean) fail("{} is not an integer", full(key));
    return in_range(key, *number, least, most);
  }

  std::int64_t required(std::string_view key, std::int64_t least, std::int64_t most) const {
    const auto number = integer(key, least, most);
    if (!number) fail("{} is missing", full(key));
    return *number;
  }

  /// A number, or an array with the same number for each layer.
  std::optional<std::int64_t> per_layer(std::string_view key, std::int64_t layers, std::int64_t most) const {
    const MetaArray* array = file_.metadata().array(full(key));
    if (array == nullptr) return integer(key, 1, most);
    const std::vector<std::int64_t>& numbers = array->integers;
    if (numbers.empty() || array->element == MetaType::boolean) fail("{} is not an array of integers", full(key));
    if (numbers.size() != static_cast<std::size_t>(layers)) {
      fail("{} has {} values for {} layers", full(key), numbers.size(), layers);
    }
    if (std::any_of(numbers.begin(), numbers.end(), [&](std::int64_t n) { return n != numbers.front(); })) {
      fail("{} differs from layer to layer, which is not supported", full(key));
    }
    return in_range(key, numbers.front(), 1, most);
  }

  /// Finite, above `least`, at most `most`; as the float that ggml will get.
  std::optional<float> real(std::string_view key, double above, double most) const {
    const MetaValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    const auto number = file_.metadata().real(full(key));
    if (!number || value->type == MetaType::boolean) fail("{} is not a number", full(key));
    if (!(*number > above && *number <= most)) {
      fail("{} is {}; it must be above {} and at most {}", full(key), *number, above, most);
    }
    const auto narrow = static_cast<float>(*number);
    if (!(narrow > static_cast<float>(above))) fail("{} is {}, which is too small", full(key), *number);
    return narrow;
  }

  std::optional<std::string_view> string(std::string_view key) const {
    if (find(key) == nullptr) return std::nullopt;
    const auto text = file_.metadata().string(full(key));
    if (!text) fail("{} is not a string", full(key));
    return text;
  }

 private:
  std::int64_t in_range(std::string_view key, std::int64_t number, std::int64_t least, std::int64_t most) const {
    if (number < least || number > most) fail("{} is {}; it must be from {} to {}", full(key), number, least, most);
    return number;
  }

  const GgufFile& file_;
  std::string_view prefix_;
};

/// Keys that change the arithmetic in a way that is not built, and the values at which they change nothing.
struct Unsupported {
  std::string_view key;
  std::string_view feature;
  std::array<double, 2> neutral{0, 0};
};
constexpr Unsupported kUnsupported[] = {
    {"expert_count", "a mixture of experts"},
    {"expert_used_count", "a mixture of experts"},
    {"expert_shared_count", "a mixture of experts"},
    {"attention.q_lora_rank", "multi-head latent attention (MLA)"},
    {"attention.kv_lora_rank", "multi-head latent attention (MLA)"},
    {"attention.key_length_mla", "multi-head latent attention (MLA)"},
    {"attention.value_length_mla", "multi-head latent attention (MLA)"},
    {"attention.indexer.head_count", "a trained sparse-attention indexer"},
    {"attention.sliding_window_pattern", "sliding-window attention"},
    {"attention.shared_kv_layers", "layers that share their KV cache"},
    {"attention.scale", "a scale of attention scores other than 1/sqrt(head size)"},
    {"attention.output_scale", "scaled attention outputs"},
    {"attention.value_scale", "scaled attention values"},
    {"attention.temperature_length", "attention temperature by position"},
    {"attention.temperature_scale", "attention temperature by position"},
    {"attention.clamp_kqv", "clamped queries, keys and values"},
    {"attention.max_alibi_bias", "ALiBi positions"},
    {"attention.relative_buckets_count", "relative position buckets"},
    {"attn_logit_softcapping", "soft-capped attention scores"},
    {"final_logit_softcapping", "soft-capped logits"},
    {"logit_scale", "scaled logits", {0, 1}},
    {"embedding_scale", "scaled embeddings", {0, 1}},
    {"residual_scale", "scaled residuals", {0, 1}},
    {"use_parallel_residual", "parallel attention and feed-forward"},
    {"nextn_predict_layers", "layers that predict several tokens"},
    {"full_attention_interval", "layers that are not attention"},
    {"ssm.state_size", "state-space layers"},
    {"rope.dimension_sections", "rotary sections (multimodal)"},
    {"rope.scaling.alpha", "NTK-alpha rope scaling"},
    {"rope.scaling.yarn_ext_factor", "a YaRN extrapolation factor other than 1", {-1, 1}},
    {"rope.scaling.yarn_attn_factor", "a YaRN attention factor other than 1", {1, 1}},
    {"rope.scaling.yarn_beta_fast", "a YaRN beta_fast other than 32", {32, 32}},
    {"rope.scaling.yarn_beta_slow", "a YaRN beta_slow other than 1", {1, 1}},
    {"rope.scaling.yarn_log_multiplier", "a YaRN log multiplier"},
};

void refuse_unsupported(const Keys& keys, const GgufFile& file) {
  for (const Unsupported& entry : kUnsupported) {
    if (keys.find(entry.key) == nullptr) continue;
    const auto value = file.metadata().real(keys.full(entry.key));
    if (value && (*value == entry.neutral[0] || *value == entry.neutral[1])) continue;
    keys.fail("uses {} ({}{}), which is not supported", entry.feature, keys.full(entry.key),
              value ? fmt::format(" = {}", *value) : "");
  }
  const MetaValue* causal = keys.find("attention.causal");
  if (causal != nullptr && file.metadata().integer(keys.full("attention.causal")) != 1) {
    keys.fail("is not a causal language model ({} is not true)", keys.full("attention.causal"));
  }
}

/// llama.cpp ignores the window of these architectures; a model trained with one needs it past that many tokens.
void refuse_sliding_window(const Keys& keys, int context) {
  const auto window = keys.integer("attention.sliding_window", 0, std::numeric_limits<std::int64_t>::max());
  if (window.value_or(0) > 0 && *window < context) {
    keys.fail("uses sliding-window attention ({} = {}, context {}), which is not supported",
              keys.full("attention.sliding_window"), *window, context);
  }
}

void read_shape(const Keys& keys, Config& config) {
  config.layers = static_cast<int>(keys.required("block_count", 1, kMaxLayers));
  config.hidden = static_cast<int>(keys.required("embedding_length", 1, kMaxHidden));
  config.context = static_cast<int>(keys.required("context_length", 1, kMaxContext));
  const auto feed_forward = keys.per_layer("feed_forward_length", config.layers, kMaxFeedForward);
  if (!feed_forward) keys.fail("{} is missing", keys.full("feed_forward_length"));
  config.feed_forward = static_cast<int>(*feed_forward);
  const auto heads = keys.per_layer("attention.head_count", config.layers, kMaxHeads);
  if (!heads) keys.fail("{} is missing", keys.full("attention.head_count"));
  config.heads = static_cast<int>(*heads);
  config.kv_heads =
      static_cast<int>(keys.per_layer("attention.head_count_kv", config.layers, kMaxHeads).value_or(*heads));
  if (config.heads % config.kv_heads != 0) {
    keys.fail("{} is {}, no multiple of {} = {}", keys.full("attention.head_count"), config.heads,
              keys.full("attention.head_count_kv"), config.kv_heads);
  }
  const auto key_length = keys.integer("attention.key_length", 1, kMaxHeadDim);
  if (!key_length && config.hidden % config.heads != 0) {
    keys.fail("{} is {}, no multiple of {} = {}, and {} is missing", keys.full("embedding_length"), config.hidden,
              keys.full("attention.head_count"), config.heads, keys.full("attention.key_length"));
  }
  config.head_dim = static_cast<int>(key_length.value_or(config.hidden / config.heads));
  const auto value_length = keys.integer("attention.value_length", 1, kMaxHeadDim);
  const std::int64_t value_dim = value_length.value_or(config.hidden / config.heads);
  if (value_dim != config.head_dim) {
    keys.fail("keys of {} values and values of {} in a head are not supported; they must be equal", config.head_dim,
              value_dim);
  }
  if (config.head_dim < 16 || config.head_dim > kMaxHeadDim || config.head_dim % 8 != 0) {
    keys.fail("has heads of {} values; multiples of 8 from 16 to {} are supported", config.head_dim, kMaxHeadDim);
  }
  const auto epsilon = keys.real("attention.layer_norm_rms_epsilon", 0, 1);
  if (!epsilon) keys.fail("{} is missing", keys.full("attention.layer_norm_rms_epsilon"));
  config.rms_epsilon = *epsilon;
}

void read_scaling(const Keys& keys, Rope& rope) {
  auto factor = keys.real("rope.scaling.factor", 1e-3, 1e6);
  const auto older = keys.real("rope.scale_linear", 1e-3, 1e6);
  if (!factor) factor = older;
  // llama.cpp applies this one to every kind of scaling.
  rope.attn_factor = keys.real("rope.scaling.attn_factor", 0, 1e6).value_or(1.0f);
  static constexpr std::array<std::string_view, 3> kTypes = {"none", "linear", "yarn"};
  const std::string_view type = keys.string("rope.scaling.type").value_or("linear");
  if (type == "longrope") keys.fail("uses longrope rope scaling, which is not supported");
  if (std::find(kTypes.begin(), kTypes.end(), type) == kTypes.end()) {
    keys.fail("{} is an {}", keys.full("rope.scaling.type"), unknown_name("rope scaling", shown(type), kTypes));
  }
  if (type == "none") return;
  if (type == "yarn" && !factor) keys.fail("{} is missing", keys.full("rope.scaling.factor"));
  rope.factor = factor.value_or(1.0f);
  if (type == "linear") {
    rope.scaling = rope.factor == 1.0f ? RopeScaling::none : RopeScaling::linear;
    return;
  }
  rope.scaling = RopeScaling::yarn;
  rope.ext_factor = 1.0f;
  // ggml multiplies by 1 + 0.1 log(factor) itself, so llama.cpp divides by it; the same float operations here.
  const float freq_scale = 1.0f / rope.factor;
  const float rounded = 1.0f / freq_scale;
  float attention = rounded <= 1.0f ? 1.0f : 0.1f * 1.0f * std::log(rounded) + 1.0f;
  attention *= 1.0f / (1.0f + 0.1f * std::log(rounded));
  rope.attn_factor = attention * rope.attn_factor;
}

void read_frequency_factors(const Keys& keys, const GgufFile& file, Rope& rope) {
  const TensorInfo* tensor = file.find("rope_freqs.weight");
  if (tensor == nullptr) return;
  if (tensor->type != GGML_TYPE_F32 || tensor->shape[0] != rope.dims / 2 || tensor->rows() != 1) {
    keys.fail("rope_freqs.weight must hold {} F32 values; it is {} of {}", rope.dims / 2,
              ggml_type_name(static_cast<ggml_type>(tensor->type)), fmt::join(tensor->shape, " x "));
  }
  for (int i = 0; i < rope.dims / 2; ++i) {
    float factor = 0;
    std::memcpy(&factor, tensor->data + static_cast<std::size_t>(i) * sizeof(float), sizeof(float));
    if (!(factor > 0 && std::isfinite(factor))) {
      keys.fail("rope_freqs.weight[{}] is {}; it must be finite and above 0", i, factor);
    }
  }
  rope.frequency_factors = reinterpret_cast<const float*>(tensor->data);
}

Rope read_rope(const Keys& keys, const GgufFile& file, const Architecture& architecture, const Config& config) {
  Rope rope;
  rope.neox = architecture.rope_neox;
  rope.dims = static_cast<int>(keys.integer("rope.dimension_count", 2, config.head_dim).value_or(config.head_dim));
  if (rope.dims % 2 != 0) keys.fail("{} is {}; it must be even", keys.full("rope.dimension_count"), rope.dims);
  rope.base = keys.real("rope.freq_base", 1, kLargestFloat).value_or(10000.0f);
  rope.original_context =
      static_cast<int>(keys.integer("rope.scaling.original_context_length", 1, kMaxContext).value_or(config.context));
  read_scaling(keys, rope);
  if (architecture.rope_factors) read_frequency_factors(keys, file, rope);
  return rope;
}

}  // namespace

Architecture find_architecture(const GgufFile& file) {
  const Architecture known[] = {llama_architecture(), qwen2_architecture(), qwen3_architecture()};
  const Metadata& metadata = file.metadata();
  const auto kind = metadata.string("general.type");
  if (kind && *kind != "model") fail_file(file.label(), "holds a '{}', not a model", shown(*kind));
  const auto name = metadata.string("general.architecture");
  if (!name) {
    fail_file(file.label(), "general.architecture is {}",
              metadata.find("general.architecture") == nullptr ? "missing" : "not a string");
  }
  std::vector<std::string_view> names;
  for (const Architecture& candidate : known) {
    if (*name == candidate.name) return candidate;
    names.emplace_back(candidate.name);
  }
  fail_file(file.label(), "{}", unknown_name("model architecture", shown(*name), names));
}

Config read_config(const GgufFile& file, const Architecture& architecture) {
  const Keys keys(file, architecture.name);
  Config config;
  config.architecture = architecture.name;
  config.name = shown(file.metadata().string("general.name").value_or(""));
  refuse_unsupported(keys, file);
  read_shape(keys, config);
  refuse_sliding_window(keys, config.context);
  config.rope = read_rope(keys, file, architecture, config);
  return config;
}

}  // namespace glimpse::model
