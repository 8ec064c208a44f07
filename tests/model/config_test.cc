// Hyperparameters of each architecture, and the rotary scaling as libllama computes it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "gguf_builder.h"
#include "glimpse/base/error.h"
#include "glimpse/model/model.h"

namespace glimpse::model {
namespace {

/// Keeps the bytes that the model points into.
struct Loaded {
  explicit Loaded(const GgufBuilder& builder) : bytes(builder.bytes()), model(GgufFile(bytes, "test")) {}
  std::vector<std::byte> bytes;
  Model model;
};

TEST(Config, OfEachArchitecture) {
  for (const std::string name : {"llama", "qwen2", "qwen3"}) {
    const Loaded loaded(tiny_model(name));
    const Config& config = loaded.model.config();
    EXPECT_EQ(config.architecture, name);
    EXPECT_EQ(config.name, "tiny");
    EXPECT_EQ(config.layers, 1);
    EXPECT_EQ(config.hidden, 16);
    EXPECT_EQ(config.feed_forward, 16);
    EXPECT_EQ(config.heads, 2);
    EXPECT_EQ(config.kv_heads, 1);
    EXPECT_EQ(config.head_dim, 16);
    EXPECT_EQ(config.vocabulary, 12);
    EXPECT_EQ(config.context, 128);
    EXPECT_EQ(config.rms_epsilon, 1e-5f);
    EXPECT_EQ(config.rope.neox, name != "llama");
    EXPECT_EQ(config.rope.dims, 16);
    EXPECT_EQ(config.rope.base, 10000.0f);
    EXPECT_EQ(config.rope.scaling, RopeScaling::none);
    EXPECT_EQ(config.rope.original_context, 128);
    EXPECT_EQ(config.rope.frequency_factors, nullptr);
    const LayerWeights& layer = loaded.model.layers().at(0);
    EXPECT_EQ(layer.q->name, "blk.0.attn_q.weight");
    EXPECT_EQ(layer.down->name, "blk.0.ffn_down.weight");
    EXPECT_EQ(layer.q_bias != nullptr, name == "qwen2");
    EXPECT_EQ(layer.v_bias != nullptr, name == "qwen2");
    EXPECT_EQ(layer.k_norm != nullptr, name == "qwen3");
  }
}

TEST(Config, TiedAndUntiedOutput) {
  GgufBuilder file = tiny_model();
  const Loaded tied(file);
  EXPECT_EQ(&tied.model.output(), &tied.model.token_embedding());
  file.add_tensor("output.weight", {16, 12});
  const Loaded untied(file);
  EXPECT_EQ(untied.model.output().name, "output.weight");
}

TEST(Config, MovedModelKeepsItsWeights) {
  Loaded loaded(tiny_model());
  const TensorInfo* q = loaded.model.layers()[0].q;
  const Model moved = std::move(loaded.model);
  EXPECT_EQ(moved.layers()[0].q, q);
  EXPECT_EQ(moved.layers()[0].q, moved.file().find("blk.0.attn_q.weight"));
}

TEST(Config, DefaultsOfMissingKeys) {
  GgufBuilder file = tiny_model();
  for (const char* key : {"attention.key_length", "attention.value_length", "rope.dimension_count", "rope.freq_base",
                          "attention.head_count_kv"}) {
    file.remove(std::string("llama.") + key);
  }
  file.set_u32("llama.attention.head_count", 1);
  for (const char* name : {"blk.0.attn_q.weight", "blk.0.attn_output.weight"}) {
    file.remove_tensor(name);
    file.add_tensor(name, {16, 16});
  }
  const Loaded loaded(file);
  const Config& config = loaded.model.config();
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.kv_heads, 1);
  EXPECT_EQ(config.rope.dims, 16);
  EXPECT_EQ(config.rope.base, 10000.0f);
}

TEST(Config, EqualValuesPerLayerAndWiderIntegersAreTaken) {
  GgufBuilder file = tiny_model();
  file.set_u32s("llama.attention.head_count", {2});
  file.set_i32s("llama.feed_forward_length", {16});
  file.set("llama.block_count", 10, raw(std::uint64_t{1}));
  const Loaded loaded(file);
  EXPECT_EQ(loaded.model.config().heads, 2);
  EXPECT_EQ(loaded.model.config().feed_forward, 16);
  EXPECT_EQ(loaded.model.config().layers, 1);
}

TEST(Config, KeysThatChangeNothingAreTaken) {
  GgufBuilder file = tiny_model();
  file.set_u32("llama.expert_count", 0);
  file.set_u32("llama.attention.sliding_window", 128);  // as long as the context
  file.set_f32("llama.logit_scale", 1);
  file.set_bool("llama.attention.causal", 1);
  file.set_bool("llama.use_parallel_residual", 0);
  file.set_f32("llama.rope.scaling.yarn_beta_fast", 32);
  file.add_tensor("blk.0.attn_rot_embd.weight", {8});
  EXPECT_NO_THROW(Loaded{file});
}

TEST(Config, PartialRotary) {
  GgufBuilder file = tiny_model();
  file.set_u32("llama.rope.dimension_count", 8);
  EXPECT_EQ(Loaded(file).model.config().rope.dims, 8);
}

TEST(Config, LinearScalingInBothSpellings) {
  for (const char* key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    GgufBuilder file = tiny_model();
    file.set_f32(key, 4);
    const Loaded loaded(file);
    const Rope& rope = loaded.model.config().rope;
    EXPECT_EQ(rope.scaling, RopeScaling::linear);
    EXPECT_EQ(rope.factor, 4.0f);
    EXPECT_EQ(rope.ext_factor, 0.0f);
    EXPECT_EQ(rope.attn_factor, 1.0f);
  }
}

TEST(Config, ScalingOfTypeNoneIgnoresTheFactor) {
  GgufBuilder file = tiny_model();
  file.set_string("llama.rope.scaling.type", "none");
  file.set_f32("llama.rope.scaling.factor", 4);
  const Loaded loaded(file);
  EXPECT_EQ(loaded.model.config().rope.scaling, RopeScaling::none);
  EXPECT_EQ(loaded.model.config().rope.factor, 1.0f);
}

/// ggml multiplies by 1 + 0.1 log(factor); the product must be the published attention factor of YaRN.
TEST(Config, YarnAttentionFactorIsThePublishedOne) {
  for (const float factor : {1.0f, 2.0f, 4.0f, 32.0f}) {
    GgufBuilder file = tiny_model("qwen2");
    file.set_string("qwen2.rope.scaling.type", "yarn");
    file.set_f32("qwen2.rope.scaling.factor", factor);
    file.set_u32("qwen2.rope.scaling.original_context_length", 64);
    const Loaded loaded(file);
    const Rope& rope = loaded.model.config().rope;
    EXPECT_EQ(rope.scaling, RopeScaling::yarn);
    EXPECT_EQ(rope.factor, factor);
    EXPECT_EQ(rope.original_context, 64);
    EXPECT_EQ(rope.ext_factor, 1.0f);
    EXPECT_EQ(rope.beta_fast, 32.0f);
    EXPECT_EQ(rope.beta_slow, 1.0f);
    const double by_ggml = rope.attn_factor * (1 + 0.1 * std::log(factor));
    EXPECT_NEAR(by_ggml, 0.1 * std::log(factor) + 1, 1e-6);
  }
}

TEST(Config, AttentionFactorOfTheFileMultiplies) {
  GgufBuilder file = tiny_model();
  file.set_string("llama.rope.scaling.type", "yarn");
  file.set_f32("llama.rope.scaling.factor", 4);
  file.set_f32("llama.rope.scaling.attn_factor", 1.5f);
  EXPECT_NEAR(Loaded(file).model.config().rope.attn_factor, 1.5, 1e-6);
}

TEST(Config, FrequencyFactorsOfLlama3) {
  GgufBuilder file = tiny_model();
  file.add_tensor("rope_freqs.weight", {8});
  const Loaded loaded(file);
  const float* factors = loaded.model.config().rope.frequency_factors;
  ASSERT_NE(factors, nullptr);
  EXPECT_EQ(factors[0], 0.5f);
  EXPECT_NEAR(factors[7], 0.507f, 1e-6);
}

TEST(Config, FrequencyFactorsBelongToLlamaOnly) {
  GgufBuilder file = tiny_model("qwen2");
  file.add_tensor("rope_freqs.weight", {8});
  EXPECT_THROW(Loaded{file}, UserError);
}

TEST(Vocabulary, SentencePieceIsTaken) {
  EXPECT_EQ(Loaded(tiny_sentencepiece_model()).model.config().vocabulary, 260);
}

}  // namespace
}  // namespace glimpse::model
