#include "glimpse/model/gates.h"

#include <ggml.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <string_view>

#include "glimpse/model/file_error.h"

namespace glimpse::model {
namespace {

constexpr std::string_view kArchitecture = "seer-gates";
constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kMost = std::numeric_limits<int>::max();
constexpr int kPoolings = 3;  // max, min, mean

class Reader {
 public:
  Reader(const GgufFile& file, const Config& config) : file_(file), config_(config) {}

  GateWeights read() {
    check_kind();
    check_model();
    GateWeights weights;
    weights.layers = config_.layers;
    weights.kv_heads = config_.kv_heads;
    weights.group = config_.heads / config_.kv_heads;
    weights.head_dim = config_.head_dim;
    weights.dim = eights("gate_length", 512);
    weights.block = block();
    weights.rope_dims = rope_dims(weights.dim);
    const bool normed = file_.metadata().find(full("norm_epsilon")) != nullptr;
    if (normed) weights.norm_epsilon = static_cast<float>(real("norm_epsilon", 0, 1));
    if (config_.head_dim % 8 != 0)
      fail("gates need heads of a multiple of 8 dimensions; the model's have {}", config_.head_dim);
    for (int layer = 0; layer < weights.layers; ++layer) read_layer(weights, layer, normed);
    for (const TensorInfo& tensor : file_.tensors()) {
      if (taken_.count(&tensor) == 0)
        fail("tensor '{}' has no place among the gates of {} layers", shown(tensor.name), weights.layers);
    }
    return weights;
  }

 private:
  template <class... Arguments>
  [[noreturn]] void fail(fmt::format_string<Arguments...> what, Arguments&&... arguments) const {
    fail_file(file_.label(), what, std::forward<Arguments>(arguments)...);
  }
  static std::string full(std::string_view key) { return fmt::format("{}.{}", kArchitecture, key); }

  const MetaValue& need(std::string_view key) const {
    const MetaValue* value = file_.metadata().find(full(key));
    if (value == nullptr) fail("{} is missing", full(key));
    return *value;
  }

  std::int64_t integer(std::string_view key, std::int64_t least, std::int64_t most) const {
    const MetaValue& value = need(key);
    const auto* number = std::get_if<std::int64_t>(&value.value);
    if (number == nullptr || value.type == MetaType::boolean) fail("{} is not an integer", full(key));
    if (*number < least || *number > most) {
      fail("{} is {}; it must be from {} to {}", full(key), *number, least, most);
    }
    return *number;
  }

  /// Above `above`, at most `most`.
  double real(std::string_view key, double above, double most) const {
    const MetaValue& value = need(key);
    const auto number = file_.metadata().real(full(key));
    if (!number || value.type == MetaType::boolean) fail("{} is not a number", full(key));
    if (!(*number > above && *number <= most)) {
      fail("{} is {}; it must be above {} and at most {}", full(key), *number, above, most);
    }
    return *number;
  }

  std::string text(std::string_view key) const {
    need(key);
    const auto value = file_.metadata().string(full(key));
    if (!value) fail("{} is not a string", full(key));
    return std::string(*value);
  }

  void check_kind() const {
    const auto name = file_.metadata().string("general.architecture");
    if (!name) fail("general.architecture is missing; a file of gates says '{}'", kArchitecture);
    if (*name != kArchitecture) {
      fail("holds '{}', not gates ('{}'); scripts/convert-seer-gates.py makes such a file", shown(*name),
           kArchitecture);
    }
    const std::int64_t version = integer("version", 1, kMost);
    if (version != kVersion) fail("gates of version {}; this build reads version {}", version, kVersion);
  }

  void check_model() const {
    if (const std::string name = text("model_architecture"); name != config_.architecture) {
      fail("the gates are of a {} model, and this one is {}", shown(name), config_.architecture);
    }
    const std::array<std::pair<const char*, int>, 4> shape{{{"block_count", config_.layers},
                                                            {"head_count", config_.heads},
                                                            {"head_count_kv", config_.kv_heads},
                                                            {"key_length", config_.head_dim}}};
    for (const auto& [key, expected] : shape) {
      const std::int64_t given = integer(key, 1, kMost);
      if (given != expected)
        fail("{} is {}, and the model's is {}: the gates are another model's", full(key), given, expected);
    }
  }

  int eights(std::string_view key, std::int64_t most) const {
    const std::int64_t value = integer(key, 8, most);
    if (value % 8 != 0) fail("{} is {}; it must be a multiple of 8", full(key), value);
    return static_cast<int>(value);
  }

  int block() const {
    const std::int64_t value = integer("block_size", 16, 128);
    if ((value & (value - 1)) != 0) fail("{} is {}; blocks are of 16, 32, 64 or 128 tokens", full("block_size"), value);
    return static_cast<int>(value);
  }

  /// The gate's angles are the model's, over its own dimensions.
  int rope_dims(int dim) const {
    const std::int64_t dims = integer("rope_dimension_count", 0, dim);
    if (dims == 0) return 0;
    if (dims % 2 != 0) fail("{} is {}; pairs are rotated", full("rope_dimension_count"), dims);
    const double base = real("rope_freq_base", 0, std::numeric_limits<float>::max());
    if (std::abs(base - static_cast<double>(config_.rope.base)) > 1e-6 * base) {
      fail("{} is {}, and the model's is {}: the gates are another model's", full("rope_freq_base"), base,
           config_.rope.base);
    }
    if (config_.rope.frequency_factors != nullptr && dims != config_.rope.dims) {
      fail("the model has a factor for each frequency of {} dimensions, the gates rotate {}", config_.rope.dims, dims);
    }
    return static_cast<int>(dims);
  }

  const TensorInfo& take(const std::string& name, const std::array<std::int64_t, 4>& shape) {
    const TensorInfo* tensor = file_.find(name);
    if (tensor == nullptr) fail("tensor '{}' is missing", name);
    if (tensor->shape != shape) {
      fail("tensor '{}' has shape [{}]; expected [{}]", name, fmt::join(tensor->shape, ", "), fmt::join(shape, ", "));
    }
    taken_.insert(tensor);
    return *tensor;
  }

  KvType type_of(const TensorInfo& tensor) const {
    switch (static_cast<ggml_type>(tensor.type)) {
      case GGML_TYPE_F32:
        return KvType::f32;
      case GGML_TYPE_F16:
        return KvType::f16;
      case GGML_TYPE_BF16:
        return KvType::bf16;
      default:
        fail("tensor '{}' is of type {}; gates are F32, F16 or BF16", tensor.name,
             ggml_type_name(static_cast<ggml_type>(tensor.type)));
    }
  }

  static float value_at(const std::byte* data, KvType type, std::size_t at) {
    if (type == KvType::f32) {
      float value = 0;
      std::memcpy(&value, data + at * sizeof value, sizeof value);
      return value;
    }
    std::uint16_t half = 0;
    std::memcpy(&half, data + at * sizeof half, sizeof half);
    return type == KvType::f16 ? float_from_f16(half) : float_from_bf16(half);
  }

  void check_finite(const TensorInfo& tensor, KvType type) const {
    const auto count = static_cast<std::size_t>(tensor.shape[0] * tensor.rows());
    for (std::size_t i = 0; i < count; ++i) {
      if (std::isfinite(value_at(tensor.data, type, i))) continue;
      fail("tensor '{}' holds a value that is no finite number, at {}", tensor.name, i);
    }
  }

  /// [.., in, dim] of the file to [.., dim, in], at the end of `to`.
  void append_turned(const TensorInfo& tensor, GateWeights& weights, std::vector<std::byte>& to) {
    const KvType type = type_of(tensor);
    if (weights.q.empty()) {
      weights.type = type;
    } else if (type != weights.type) {
      fail("tensor '{}' is {}, others are {}; give all matrices one type", tensor.name, name(type), name(weights.type));
    }
    check_finite(tensor, type);
    const std::size_t bytes = row_bytes(type, 1);
    const auto columns = static_cast<std::size_t>(weights.head_dim);
    const auto rows = static_cast<std::size_t>(weights.dim);
    const std::size_t matrices = tensor.bytes / (columns * rows * bytes);
    const std::size_t start = to.size();
    to.resize(start + tensor.bytes);
    for (std::size_t m = 0; m < matrices; ++m) {
      const std::byte* from = tensor.data + m * columns * rows * bytes;
      std::byte* out = to.data() + start + m * columns * rows * bytes;
      for (std::size_t i = 0; i < columns; ++i) {
        for (std::size_t o = 0; o < rows; ++o) {
          std::memcpy(out + (o * columns + i) * bytes, from + (i * rows + o) * bytes, bytes);
        }
      }
    }
  }

  void append_norm(const std::string& name, int dim, std::vector<float>& to) {
    const TensorInfo& tensor = take(name, {dim, 1, 1, 1});
    const KvType type = type_of(tensor);
    check_finite(tensor, type);
    for (std::size_t i = 0; i < static_cast<std::size_t>(dim); ++i) to.push_back(value_at(tensor.data, type, i));
  }

  void read_layer(GateWeights& weights, int layer, bool normed) {
    const auto name = [layer](std::string_view part) { return fmt::format("blk.{}.attn_gate_{}.weight", layer, part); };
    const std::int64_t dim = weights.dim, in = weights.head_dim, heads = weights.kv_heads;
    append_turned(take(name("q"), {dim, in, weights.group, heads}), weights, weights.q);
    append_turned(take(name("k"), {dim, in, kPoolings, heads}), weights, weights.k);
    if (!normed) return;
    append_norm(name("q_norm"), weights.dim, weights.q_norm);
    append_norm(name("k_norm"), weights.dim, weights.k_norm);
  }

  const GgufFile& file_;
  const Config& config_;
  std::set<const TensorInfo*> taken_;
};

}  // namespace

GateWeights read_gates(const std::filesystem::path& path, const Config& config) {
  require_file(path, "scripts/convert-seer-gates.py makes one of trained gates");
  return read_gates(GgufFile(path), config);
}

GateWeights read_gates(const GgufFile& file, const Config& config) {
  return Reader(file, config).read();
}

}  // namespace glimpse::model
