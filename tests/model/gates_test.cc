// The side file of trained gates: what a good one becomes, and every way in which one is refused.
#include "glimpse/model/gates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "gguf_builder.h"
#include "glimpse/base/error.h"

namespace glimpse::model {
namespace {

constexpr int kDim = 8, kHeadDim = 16, kGroup = 2;

/// Of gguf_builder's tiny model: one layer, 2 query heads of 16 over one KV head.
GgufBuilder tiny_gates() {
  GgufBuilder file;
  file.set_string("general.architecture", "seer-gates");
  file.set_u32("seer-gates.version", 1);
  file.set_string("seer-gates.model_architecture", "llama");
  file.set_u32("seer-gates.block_count", 1);
  file.set_u32("seer-gates.head_count", 2);
  file.set_u32("seer-gates.head_count_kv", 1);
  file.set_u32("seer-gates.key_length", kHeadDim);
  file.set_u32("seer-gates.gate_length", kDim);
  file.set_u32("seer-gates.block_size", 64);
  file.set_u32("seer-gates.rope_dimension_count", kDim);
  file.set_f32("seer-gates.rope_freq_base", 10000.0F);
  file.set_f32("seer-gates.norm_epsilon", 1e-6F);
  file.add_tensor("blk.0.attn_gate_q.weight", {kDim, kHeadDim, kGroup, 1});
  file.add_tensor("blk.0.attn_gate_k.weight", {kDim, kHeadDim, 3, 1});
  file.add_tensor("blk.0.attn_gate_q_norm.weight", {kDim});
  file.add_tensor("blk.0.attn_gate_k_norm.weight", {kDim});
  return file;
}

Config tiny_config() {
  const std::vector<std::byte> bytes = tiny_model().bytes();
  return Model(GgufFile(bytes, "tiny.gguf")).config();
}

GateWeights read(const GgufBuilder& file) {
  const std::vector<std::byte> bytes = file.bytes();
  return read_gates(GgufFile(bytes, "gates.gguf"), tiny_config());
}

float float_at(const std::vector<std::byte>& data, std::size_t at) {
  float value = 0;
  std::memcpy(&value, data.data() + at * sizeof value, sizeof value);
  return value;
}

TEST(Gates, AreTurnedSoThatARowIsWhatOneOutputTakes) {
  GgufBuilder file = tiny_gates();
  BuilderTensor& k = file.tensor("blk.0.attn_gate_k.weight");
  k.data.clear();
  for (int at = 0; at < 3 * kHeadDim * kDim; ++at) k.data += raw(static_cast<float>(at));
  const GateWeights weights = read(file);
  EXPECT_EQ(weights.layers, 1);
  EXPECT_EQ(weights.kv_heads, 1);
  EXPECT_EQ(weights.group, kGroup);
  EXPECT_EQ(weights.head_dim, kHeadDim);
  EXPECT_EQ(weights.dim, kDim);
  EXPECT_EQ(weights.block, 64);
  EXPECT_EQ(weights.rope_dims, kDim);
  EXPECT_EQ(weights.norm_epsilon, 1e-6F);
  EXPECT_EQ(weights.type, KvType::f32);
  EXPECT_EQ(weights.q.size(), sizeof(float) * kGroup * kHeadDim * kDim);
  ASSERT_EQ(weights.k.size(), sizeof(float) * 3 * kHeadDim * kDim);
  for (int part = 0; part < 3; ++part) {
    for (int out = 0; out < kDim; ++out) {
      for (int in = 0; in < kHeadDim; ++in) {
        const int turned = (part * kDim + out) * kHeadDim + in, written = (part * kHeadDim + in) * kDim + out;
        ASSERT_EQ(float_at(weights.k, static_cast<std::size_t>(turned)), static_cast<float>(written));
      }
    }
  }
  EXPECT_EQ(weights.q_norm.size(), std::size_t{kDim});
  EXPECT_FLOAT_EQ(weights.k_norm.at(3), 0.503F);
}

TEST(Gates, NeedNoNormsAndNoRotation) {
  GgufBuilder file = tiny_gates();
  file.remove("seer-gates.norm_epsilon");
  file.remove_tensor("blk.0.attn_gate_q_norm.weight");
  file.remove_tensor("blk.0.attn_gate_k_norm.weight");
  file.set_u32("seer-gates.rope_dimension_count", 0);
  file.remove("seer-gates.rope_freq_base");
  const GateWeights weights = read(file);
  EXPECT_TRUE(weights.q_norm.empty());
  EXPECT_TRUE(weights.k_norm.empty());
  EXPECT_EQ(weights.rope_dims, 0);
}

using B = GgufBuilder;

void spoil_number(B& file, const std::string& tensor, float value) {
  file.tensor(tensor).data.replace(40, sizeof value, raw(value));
}

struct BadGates {
  const char* name;
  std::function<void(B&)> spoil;
  const char* expected;
};
std::ostream& operator<<(std::ostream& out, const BadGates& row) {
  return out << row.name;
}

const char* const kQ = "blk.0.attn_gate_q.weight";
const char* const kK = "blk.0.attn_gate_k.weight";
const char* const kNorm = "blk.0.attn_gate_k_norm.weight";

const BadGates kBad[] = {
    {"no_gguf", [](B& f) { f.magic = "PK\x03\x04"; }, "not 'GGUF'"},
    {"cut_short", [](B& f) { f.tensors.back().data.resize(8); }, kNorm},
    {"no_architecture", [](B& f) { f.remove("general.architecture"); }, "general.architecture is missing"},
    {"a_model", [](B& f) { f = tiny_model(); }, "holds 'llama', not gates"},
    {"no_version", [](B& f) { f.remove("seer-gates.version"); }, "seer-gates.version is missing"},
    {"later_version", [](B& f) { f.set_u32("seer-gates.version", 2); },
     "gates of version 2; this build reads version 1"},
    {"of_another_architecture", [](B& f) { f.set_string("seer-gates.model_architecture", "qwen3"); },
     "of a qwen3 model, and this one is llama"},
    {"architecture_is_a_number", [](B& f) { f.set_u32("seer-gates.model_architecture", 3); }, "is not a string"},
    {"other_layers", [](B& f) { f.set_u32("seer-gates.block_count", 2); }, "block_count is 2, and the model's is 1"},
    {"other_heads", [](B& f) { f.set_u32("seer-gates.head_count", 4); }, "head_count is 4, and the model's is 2"},
    {"other_kv_heads", [](B& f) { f.set_u32("seer-gates.head_count_kv", 2); }, "head_count_kv is 2"},
    {"other_head_size", [](B& f) { f.set_u32("seer-gates.key_length", 32); },
     "key_length is 32, and the model's is 16"},
    {"shape_is_text", [](B& f) { f.set_string("seer-gates.head_count", "2"); }, "head_count is not an integer"},
    {"no_gate_length", [](B& f) { f.remove("seer-gates.gate_length"); }, "gate_length is missing"},
    {"gate_length_0", [](B& f) { f.set_u32("seer-gates.gate_length", 0); }, "gate_length is 0; it must be from 8"},
    {"gate_length_odd", [](B& f) { f.set_u32("seer-gates.gate_length", 12); }, "multiple of 8"},
    {"gate_length_huge", [](B& f) { f.set_u32("seer-gates.gate_length", 1u << 30); }, "from 8 to 512"},
    {"block_0", [](B& f) { f.set_u32("seer-gates.block_size", 0); }, "block_size is 0"},
    {"block_48", [](B& f) { f.set_u32("seer-gates.block_size", 48); }, "blocks are of 16, 32, 64 or 128 tokens"},
    {"rope_odd", [](B& f) { f.set_u32("seer-gates.rope_dimension_count", 3); }, "pairs are rotated"},
    {"rope_wider_than_the_gate", [](B& f) { f.set_u32("seer-gates.rope_dimension_count", 10); }, "from 0 to 8"},
    {"no_base", [](B& f) { f.remove("seer-gates.rope_freq_base"); }, "rope_freq_base is missing"},
    {"other_base", [](B& f) { f.set_f32("seer-gates.rope_freq_base", 1e6F); }, "and the model's is 10000"},
    {"base_nan", [](B& f) { f.set_f32("seer-gates.rope_freq_base", std::nanf("")); }, "rope_freq_base is nan"},
    {"epsilon_0", [](B& f) { f.set_f32("seer-gates.norm_epsilon", 0); }, "norm_epsilon is 0"},
    {"epsilon_text", [](B& f) { f.set_string("seer-gates.norm_epsilon", "x"); }, "norm_epsilon is not a number"},
    {"no_q", [](B& f) { f.remove_tensor(kQ); }, "'blk.0.attn_gate_q.weight' is missing"},
    {"no_norm", [](B& f) { f.remove_tensor(kNorm); }, "'blk.0.attn_gate_k_norm.weight' is missing"},
    {"q_of_one_head",
     [](B& f) {
       f.remove_tensor(kQ), f.add_tensor(kQ, {kDim, kHeadDim, 1, 1});
     },
     "has shape [8, 16, 1, 1]; expected [8, 16, 2, 1]"},
    {"k_of_two_poolings",
     [](B& f) {
       f.remove_tensor(kK), f.add_tensor(kK, {kDim, kHeadDim, 2, 1});
     },
     "expected [8, 16, 3, 1]"},
    {"k_turned",
     [](B& f) {
       f.remove_tensor(kK), f.add_tensor(kK, {kHeadDim, kDim, 3, 1});
     },
     "expected [8, 16, 3, 1]"},
    {"nan", [](B& f) { spoil_number(f, kQ, std::nanf("")); }, "holds a value that is no finite number, at 10"},
    {"infinity", [](B& f) { spoil_number(f, kK, HUGE_VALF); }, "'blk.0.attn_gate_k.weight' holds a value"},
    {"norm_nan", [](B& f) { f.tensor(kNorm).data.replace(0, 4, raw(std::nanf(""))); }, "k_norm.weight' holds a value"},
    {"two_types",
     [](B& f) {
       f.tensor(kK).type = 1;
       f.tensor(kK).data.resize(f.tensor(kK).data.size() / 2);
     },
     "is f16, others are f32"},
    {"integers", [](B& f) { f.tensor(kQ).type = 26; }, "is of type i32; gates are F32, F16 or BF16"},
    {"a_tensor_more", [](B& f) { f.add_tensor("blk.1.attn_gate_q.weight", {kDim}); }, "has no place among the gates"},
    {"norms_without_epsilon", [](B& f) { f.remove("seer-gates.norm_epsilon"); }, "has no place among the gates"},
};

class BadGatesTest : public testing::TestWithParam<BadGates> {};

TEST_P(BadGatesTest, AreRefusedByName) {
  GgufBuilder file = tiny_gates();
  GetParam().spoil(file);
  std::string error;
  try {
    read(file);
  } catch (const UserError& refused) {
    error = refused.what();
  }
  EXPECT_THAT(error, testing::StartsWith("'gates.gguf': "));
  EXPECT_THAT(error, testing::HasSubstr(GetParam().expected));
  EXPECT_EQ(error.find_first_of("\n\x1b"), std::string::npos);
}

TEST(Gates, AMissingFileSaysWhatMakesOne) {
  try {
    read_gates(std::filesystem::path("/nonexistent.gguf"), Config());
    FAIL() << "read";
  } catch (const UserError& refused) {
    EXPECT_THAT(refused.what(), testing::HasSubstr("'/nonexistent.gguf': there is no such file; scripts/convert-seer"));
  }
}

INSTANTIATE_TEST_SUITE_P(Gates, BadGatesTest, testing::ValuesIn(kBad),
                         [](const testing::TestParamInfo<BadGates>& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace glimpse::model
