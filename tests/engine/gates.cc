#include "tests/engine/gates.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <utility>

#include "glimpse/base/dtype.h"
#include "glimpse/model/model.h"

namespace glimpse::engine {
namespace {

constexpr std::uint32_t kF16 = 1, kBf16 = 30;

class Maker {
 public:
  Maker(const model::Config& config, const GateRecipe& recipe) : config_(config), how_(recipe), random_(recipe.seed) {}

  MadeGates make() {
    header();
    const auto group = static_cast<std::size_t>(config_.heads / config_.kv_heads);
    for (int layer = 0; layer < config_.layers; ++layer) {
      std::vector<methods::Gate> gates(static_cast<std::size_t>(config_.kv_heads));
      model::BuilderTensor q =
          tensor(layer, "q", {how_.dim, config_.head_dim, static_cast<int>(group), config_.kv_heads});
      model::BuilderTensor k = tensor(layer, "k", {how_.dim, config_.head_dim, 3, config_.kv_heads});
      for (methods::Gate& gate : gates) {
        gate.model = angles(config_.rope.dims, config_.rope.neox);
        gate.own = angles(how_.rope_dims, true);
        gate.block = how_.block;
        for (std::size_t j = 0; j < group; ++j) gate.query.push_back(matrix(q));
        for (std::size_t p = 0; p < 3; ++p) gate.key.push_back(matrix(k));
      }
      made_.file.tensors.push_back(std::move(q));
      made_.file.tensors.push_back(std::move(k));
      if (how_.normed) add_norms(layer, gates);
      made_.heads.insert(made_.heads.end(), gates.begin(), gates.end());
    }
    return std::move(made_);
  }

 private:
  /// The model's angles over so many dimensions.
  methods::Angles angles(int dims, bool halves) const {
    const model::Rope& rope = config_.rope;
    const auto base = static_cast<double>(rope.base);
    methods::Angles made{methods::rope_frequencies(base, dims), 1, halves};
    if (rope.scaling == model::RopeScaling::yarn) {
      const auto factor = static_cast<double>(rope.factor);
      made.frequencies = methods::yarn_frequencies(base, dims, {factor, rope.original_context});
      made.magnitude = 1 + 0.1 * std::log(factor);
    }
    for (std::size_t i = 0; rope.frequency_factors != nullptr && i < made.frequencies.size(); ++i) {
      made.frequencies[i] /= static_cast<double>(rope.frequency_factors[i]);
    }
    return made;
  }

  void header() {
    model::GgufBuilder& file = made_.file;
    const auto key = [](const char* name) { return std::string("seer-gates.") + name; };
    file.set_string("general.architecture", "seer-gates");
    file.set_u32(key("version"), 1);
    file.set_string(key("model_architecture"), config_.architecture);
    file.set_u32(key("block_count"), static_cast<std::uint32_t>(config_.layers));
    file.set_u32(key("head_count"), static_cast<std::uint32_t>(config_.heads));
    file.set_u32(key("head_count_kv"), static_cast<std::uint32_t>(config_.kv_heads));
    file.set_u32(key("key_length"), static_cast<std::uint32_t>(config_.head_dim));
    file.set_u32(key("gate_length"), static_cast<std::uint32_t>(how_.dim));
    file.set_u32(key("block_size"), static_cast<std::uint32_t>(how_.block));
    file.set_u32(key("rope_dimension_count"), static_cast<std::uint32_t>(how_.rope_dims));
    if (how_.rope_dims > 0) file.set_f32(key("rope_freq_base"), config_.rope.base);
    if (how_.normed) file.set_f32(key("norm_epsilon"), 1e-6F);
  }

  model::BuilderTensor tensor(int layer, const char* part, const std::vector<int>& shape) const {
    return {
        fmt::format("blk.{}.attn_gate_{}.weight", layer, part), {shape.begin(), shape.end()}, how_.type, {}, {}, {}};
  }

  /// As the file's type holds it.
  float next(model::BuilderTensor& to, float scale) {
    float value = scale * std::normal_distribution<float>()(random_);
    if (to.type == kF16 || to.type == kBf16) {
      const std::uint16_t half = to.type == kF16 ? f16_from_float(value) : bf16_from_float(value);
      to.data += model::raw(half);
      return to.type == kF16 ? float_from_f16(half) : float_from_bf16(half);
    }
    to.data += model::raw(value);
    return value;
  }

  methods::Rows matrix(model::BuilderTensor& to) {
    const float scale = 2.0F / std::sqrt(static_cast<float>(config_.head_dim));
    methods::Rows rows(static_cast<std::size_t>(config_.head_dim));
    for (methods::Row& row : rows) {
      for (int o = 0; o < how_.dim; ++o) row.push_back(static_cast<double>(next(to, scale)));
    }
    return rows;
  }

  void add_norms(int layer, std::vector<methods::Gate>& gates) {
    for (const char* part : {"q_norm", "k_norm"}) {
      model::BuilderTensor norm = tensor(layer, part, {how_.dim});
      norm.type = 0;
      methods::Row weight;
      for (int o = 0; o < how_.dim; ++o) weight.push_back(static_cast<double>(next(norm, 1.0F)));
      for (methods::Gate& gate : gates) {
        gate.epsilon = static_cast<double>(1e-6F);
        (part[0] == 'q' ? gate.query_norm : gate.key_norm) = weight;
      }
      made_.file.tensors.push_back(std::move(norm));
    }
  }

  const model::Config& config_;
  GateRecipe how_;
  std::mt19937_64 random_;
  MadeGates made_;
};

struct Written {
  std::vector<std::filesystem::path> paths;
  ~Written() {
    std::error_code ignored;
    for (const auto& path : paths) std::filesystem::remove(path, ignored);
  }
};

}  // namespace

MadeGates make_gates(const std::filesystem::path& model, const GateRecipe& recipe) {
  const model::Model loaded(model);
  return Maker(loaded.config(), recipe).make();
}

std::string write_gates(const model::GgufBuilder& file) {
  static Written written;
  const auto path = std::filesystem::path(testing::TempDir()) /
                    fmt::format("glimpse-gates-{}-{}.gguf", ::getpid(), written.paths.size());
  const std::vector<std::byte> bytes = file.bytes();
  written.paths.push_back(path);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return path.string();
}

const std::string& gates_of(const std::filesystem::path& model) {
  static std::map<std::filesystem::path, std::string> made;
  std::string& path = made[model];
  if (path.empty()) path = write_gates(make_gates(model, {}).file);
  return path;
}

void add_needed(const std::string& policy, const std::filesystem::path& model, policies::PolicyOptions& options) {
  if (policy == "seer") options.extra.emplace("gates", gates_of(model));
}

}  // namespace glimpse::engine
