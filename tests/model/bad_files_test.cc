// One row for each way a file can lie. Every row ends in one UserError that names the file and the fault.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <ostream>

#include "gguf_builder.h"
#include "glimpse/base/error.h"
#include "glimpse/model/model.h"

namespace glimpse::model {
namespace {

constexpr std::uint32_t kU8 = 0, kU32 = 4, kBool = 7, kString = 8, kArray = 9, kU64 = 10, kF64 = 12;
constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();

struct BadFile {
  const char* name;
  std::function<void(GgufBuilder&)> spoil;
  const char* expected;  ///< part of the error
};
std::ostream& operator<<(std::ostream& out, const BadFile& row) {
  return out << row.name;
}

using B = GgufBuilder;
const float kNan = std::nanf("");

const BadFile kContainer[] = {
    {"magic", [](B& f) { f.magic = "GGML"; }, "starts with 'GGML', not 'GGUF'"},
    {"magic_not_printable", [](B& f) { f.magic = std::string("\x1b[2J", 4); }, "starts with '?[2J'"},
    {"version_0", [](B& f) { f.version = 0; }, "GGUF version 0"},
    {"version_1", [](B& f) { f.version = 1; }, "GGUF version 1; versions 2 and 3"},
    {"version_4", [](B& f) { f.version = 4; }, "GGUF version 4"},
    {"big_endian", [](B& f) { f.version = 0x03000000; }, "big-endian"},
    {"pairs_more_than_bytes", [](B& f) { f.claimed_pairs = 1000000; }, "claims 1000000 metadata entries"},
    {"pairs_overflow", [](B& f) { f.claimed_pairs = kHuge; }, "metadata entries"},
    {"pairs_one_too_many", [](B& f) { f.claimed_pairs = f.pairs.size() + 1; }, "the name of tensor 0 is"},
    {"tensors_more_than_bytes", [](B& f) { f.claimed_tensors = 1 << 20; }, "claims 1048576 tensors"},
    {"tensors_overflow", [](B& f) { f.claimed_tensors = kHuge / 33 + 2; }, "tensors but has only"},
    {"key_empty", [](B& f) { f.pairs[1].key = ""; }, "metadata key 1 is empty"},
    {"key_too_long", [](B& f) { f.set_u32(std::string(70000, 'k'), 1); }, "70000 bytes long; at most 65535"},
    {"key_twice", [](B& f) { f.pairs.push_back(f.pairs[0]); }, "'general.architecture' appears twice"},
    {"key_control_characters", [](B& f) { f.set_u32("a\x1b[31m", 1); }, "not printable ASCII: 'a?[31m'"},
    {"key_zero_byte", [](B& f) { f.set_u32(std::string("a\0b", 3), 1); }, "not printable ASCII"},
    {"key_invalid_utf8", [](B& f) { f.set_u32("a\xff", 1); }, "not printable ASCII"},
    {"value_type_unknown", [](B& f) { f.set("x", 13, "    "); }, "key 'x' has value type 13"},
    {"value_type_huge", [](B& f) { f.set("x", 0xffffffff, "    "); }, "key 'x' has value type 4294967295"},
    {"bool_2", [](B& f) { f.set_bool("x", 2); }, "boolean with value 2"},
    {"u64_too_large", [](B& f) { f.set("x", kU64, raw(kHuge)); }, "2^63"},
    {"string_longer_than_file", [](B& f) { f.set("x", kString, raw(std::uint64_t{1} << 40)); },
     "claims 1099511627776 bytes"},
    {"string_length_overflow", [](B& f) { f.set("x", kString, raw(kHuge)); }, "claims 18446744073709551615 bytes"},
    {"array_of_arrays", [](B& f) { f.set("x", kArray, raw(kArray) + raw(std::uint64_t{0})); }, "array of arrays"},
    {"array_type_unknown", [](B& f) { f.set("x", kArray, raw(99u) + raw(std::uint64_t{0})); }, "value type 99"},
    {"array_longer_than_file", [](B& f) { f.set("x", kArray, raw(kU32) + raw(std::uint64_t{1} << 20)); },
     "array of 1048576 elements but"},
    {"array_count_overflow", [](B& f) { f.set("x", kArray, raw(kF64) + raw(kHuge / 8 + 2)); }, "at most 16777216"},
    {"array_of_strings_overflow", [](B& f) { f.set("x", kArray, raw(kString) + raw(kHuge)); }, "at most 16777216"},
    {"array_string_longer_than_file",
     [](B& f) { f.set("x", kArray, raw(kString) + raw(std::uint64_t{1}) + raw(kHuge)); },
     "claims 18446744073709551615 bytes"},
    {"array_bool_7", [](B& f) { f.set("x", kArray, raw(kBool) + raw(std::uint64_t{1}) + raw(std::uint8_t{7})); },
     "boolean with value 7"},
    {"alignment_0", [](B& f) { f.set_u32("general.alignment", 0); }, "general.alignment is 0"},
    {"alignment_3", [](B& f) { f.set_u32("general.alignment", 3); }, "general.alignment is 3"},
    {"alignment_48", [](B& f) { f.set_u32("general.alignment", 48); }, "general.alignment is 48"},
    {"alignment_huge", [](B& f) { f.set_u32("general.alignment", 1u << 31); }, "general.alignment is 2147483648"},
    {"alignment_string", [](B& f) { f.set_string("general.alignment", "32"); }, "general.alignment is not a 32-bit"},
};

const BadFile kTensors[] = {
    {"name_empty", [](B& f) { f.tensors[0].name = ""; }, "the name of tensor 0 is empty"},
    {"name_too_long", [](B& f) { f.tensors[0].name = std::string(64, 't'); }, "64 bytes long; at most 63"},
    {"name_twice", [](B& f) { f.tensors.back().name = "output_norm.weight"; }, "'output_norm.weight' appears twice"},
    {"name_control_characters", [](B& f) { f.tensors[0].name = "a\nb"; }, "not printable ASCII: 'a?b'"},
    {"dimensions_0", [](B& f) { f.tensors[0].dimension_count = 0; }, "has 0 dimensions; 1 to 4"},
    {"dimensions_5", [](B& f) { f.tensors[0].dimension_count = 5; }, "has 5 dimensions"},
    {"dimensions_huge", [](B& f) { f.tensors[0].dimension_count = 0xffffffff; }, "has 4294967295 dimensions"},
    {"extent_0", [](B& f) { f.tensors[0].shape[1] = 0; }, "dimension of 0"},
    {"extent_negative", [](B& f) { f.tensors[0].shape[1] = -1; }, "dimension of -1"},
    {"extent_least", [](B& f) { f.tensors[0].shape[0] = INT64_MIN; }, "dimension of -9223372036854775808"},
    {"product_overflow",
     [](B& f) {
       f.tensors[0].shape = {16, INT64_MAX / 4};
     },
     "more than 2^63 elements"},
    {"product_overflow_to_small",
     [](B& f) {
       f.tensors[0].shape = {1LL << 32, 1LL << 32};
     },
     "more than 2^63 elements"},
    {"bytes_overflow", [](B& f) { f.tensors[0].shape = {1LL << 62}; }, "larger than the file"},
    {"larger_than_file",
     [](B& f) {
       f.tensors[0].shape = {16, 1 << 20};
     },
     "larger than the file"},
    {"type_removed", [](B& f) { f.tensors[0].type = 4; }, "type 4, which ggml no longer supports"},
    {"type_unknown", [](B& f) { f.tensors[0].type = 1000; }, "type 1000, which this build of ggml does not know"},
    {"type_negative", [](B& f) { f.tensors[0].type = 0xffffffff; }, "type 4294967295"},
    {"row_no_whole_blocks", [](B& f) { f.tensors[0].type = 8; }, "rows of 16 values, no multiple of the 32"},
    {"offset_unaligned", [](B& f) { f.tensors[1].offset = 772; }, "offset 772, no multiple of the alignment 32"},
    {"offset_past_end", [](B& f) { f.tensors[1].offset = 1 << 20; }, "passes the end of the tensor data"},
    {"offset_overflow", [](B& f) { f.tensors[1].offset = kHuge - 31; }, "passes the end of the tensor data"},
    {"last_byte_past_end", [](B& f) { f.tensors.back().data.pop_back(); }, "'blk.0.ffn_down.weight' (1024 bytes"},
    {"overlap", [](B& f) { f.tensors[1].offset = 0; }, "'output_norm.weight' overlap"},
    {"no_data_at_all",
     [](B& f) {
       for (BuilderTensor& tensor : f.tensors) tensor.data.clear();
     },
     "larger than the file"},
    {"missing", [](B& f) { f.remove_tensor("blk.0.attn_k.weight"); }, "'blk.0.attn_k.weight' is missing"},
    {"missing_embedding", [](B& f) { f.remove_tensor("token_embd.weight"); }, "'token_embd.weight' is missing"},
    {"wrong_shape",
     [](B& f) {
       f.tensor("blk.0.attn_k.weight").shape = {32, 8};
     },
     "has shape [32, 8]; expected [16, 16]"},
    {"embedding_of_other_vocabulary",
     [](B& f) {
       f.tensor("token_embd.weight").shape = {16, 11};
     },
     "expected [16, 12]"},
    {"norm_f16", [](B& f) { f.tensor("output_norm.weight").type = 1; }, "norms and biases must be F32"},
    {"weight_of_integers", [](B& f) { f.tensor("blk.0.attn_k.weight").type = 26; }, "i32, which cannot be multiplied"},
    {"bias_without_place", [](B& f) { f.add_tensor("blk.0.attn_q.bias", {32}); }, "'blk.0.attn_q.bias' has no place"},
    {"layer_without_place", [](B& f) { f.add_tensor("blk.1.attn_norm.weight", {16}); }, "'blk.1.attn_norm.weight'"},
    {"experts",
     [](B& f) {
       f.add_tensor("blk.0.ffn_gate_exps.weight", {16, 16, 2});
     },
     "a mixture of experts (tensor"},
    {"fused_qkv",
     [](B& f) {
       f.add_tensor("blk.0.attn_qkv.weight", {16, 64});
     },
     "fused query, key and value"},
    {"mla",
     [](B& f) {
       f.add_tensor("blk.0.attn_kv_a_mqa.weight", {16, 16});
     },
     "multi-head latent attention"},
    {"rope_factors_wrong_length", [](B& f) { f.add_tensor("rope_freqs.weight", {16}); }, "must hold 8 F32 values"},
    {"rope_factors_zero",
     [](B& f) {
       f.add_tensor("rope_freqs.weight", {8});
       f.tensor("rope_freqs.weight").data = std::string(32, '\0');
     },
     "rope_freqs.weight[0] is 0"},
    {"rope_factors_nan",
     [](B& f) {
       f.add_tensor("rope_freqs.weight", {8});
       f.tensor("rope_freqs.weight").data.replace(4, 4, raw(kNan));
     },
     "rope_freqs.weight[1] is nan"},
};

const BadFile kConfig[] = {
    {"no_architecture", [](B& f) { f.remove("general.architecture"); }, "general.architecture is missing"},
    {"architecture_number", [](B& f) { f.set_u32("general.architecture", 1); }, "general.architecture is not a string"},
    {"architecture_unknown", [](B& f) { f.set_string("general.architecture", "lama"); }, "did you mean 'llama'?"},
    {"architecture_terminal_codes", [](B& f) { f.set_string("general.architecture", "\x1b[2J"); }, "'?[2J'"},
    {"adapter", [](B& f) { f.set_string("general.type", "adapter"); }, "holds a 'adapter', not a model"},
    {"layers_missing", [](B& f) { f.remove("llama.block_count"); }, "llama.block_count is missing"},
    {"layers_0", [](B& f) { f.set_u32("llama.block_count", 0); }, "block_count is 0; it must be from 1 to 1024"},
    {"layers_huge", [](B& f) { f.set_u32("llama.block_count", 0xffffffff); }, "block_count is 4294967295"},
    {"layers_string", [](B& f) { f.set_string("llama.block_count", "1"); }, "block_count is not an integer"},
    {"layers_bool", [](B& f) { f.set_bool("llama.block_count", 1); }, "block_count is not an integer"},
    {"layers_more_than_tensors", [](B& f) { f.set_u32("llama.block_count", 2); },
     "'blk.1.attn_norm.weight' is missing"},
    {"hidden_0", [](B& f) { f.set_u32("llama.embedding_length", 0); }, "embedding_length is 0"},
    {"context_0", [](B& f) { f.set_u32("llama.context_length", 0); }, "context_length is 0"},
    {"feed_forward_0", [](B& f) { f.set_u32("llama.feed_forward_length", 0); }, "feed_forward_length is 0"},
    {"feed_forward_by_layer",
     [](B& f) {
       f.set_u32("llama.block_count", 2);
       f.set_u32s("llama.feed_forward_length", {16, 32});
     },
     "differs from layer to layer"},
    {"heads_0", [](B& f) { f.set_u32("llama.attention.head_count", 0); }, "head_count is 0"},
    {"kv_heads_0", [](B& f) { f.set_u32("llama.attention.head_count_kv", 0); }, "head_count_kv is 0"},
    {"heads_array_wrong_length",
     [](B& f) {
       f.set_u32s("llama.attention.head_count", {2, 2});
     },
     "2 values for 1 layers"},
    {"heads_array_empty", [](B& f) { f.set_u32s("llama.attention.head_count", {}); }, "not an array of integers"},
    {"kv_heads_do_not_divide", [](B& f) { f.set_u32("llama.attention.head_count_kv", 3); }, "no multiple of"},
    {"heads_do_not_divide_hidden",
     [](B& f) {
       f.set_u32("llama.attention.head_count", 3);
       f.remove("llama.attention.key_length");
     },
     "embedding_length is 16, no multiple of llama.attention.head_count = 3"},
    {"key_unlike_value", [](B& f) { f.set_u32("llama.attention.value_length", 8); }, "they must be equal"},
    {"head_dim_12",
     [](B& f) {
       f.set_u32("llama.attention.key_length", 12);
       f.set_u32("llama.attention.value_length", 12);
     },
     "heads of 12 values"},
    {"head_dim_huge", [](B& f) { f.set_u32("llama.attention.key_length", 1024); }, "key_length is 1024"},
    {"epsilon_missing", [](B& f) { f.remove("llama.attention.layer_norm_rms_epsilon"); }, "rms_epsilon is missing"},
    {"epsilon_0", [](B& f) { f.set_f32("llama.attention.layer_norm_rms_epsilon", 0); }, "rms_epsilon is 0"},
    {"epsilon_nan", [](B& f) { f.set_f32("llama.attention.layer_norm_rms_epsilon", kNan); }, "rms_epsilon is nan"},
    {"epsilon_vanishes", [](B& f) { f.set("llama.attention.layer_norm_rms_epsilon", kF64, raw(1e-300)); },
     "rms_epsilon is 1e-300"},
    {"rope_base_0", [](B& f) { f.set_f32("llama.rope.freq_base", 0); }, "freq_base is 0"},
    {"rope_base_nan", [](B& f) { f.set_f32("llama.rope.freq_base", kNan); }, "freq_base is nan"},
    {"rope_base_infinite", [](B& f) { f.set_f32("llama.rope.freq_base", INFINITY); }, "freq_base is inf"},
    {"rope_dims_odd", [](B& f) { f.set_u32("llama.rope.dimension_count", 15); },
     "dimension_count is 15; it must be even"},
    {"rope_dims_over_head", [](B& f) { f.set_u32("llama.rope.dimension_count", 18); }, "it must be from 2 to 16"},
    {"scaling_unknown", [](B& f) { f.set_string("llama.rope.scaling.type", "yarm"); }, "did you mean 'yarn'?"},
    {"scaling_longrope", [](B& f) { f.set_string("llama.rope.scaling.type", "longrope"); }, "uses longrope"},
    {"scaling_factor_0", [](B& f) { f.set_f32("llama.rope.scaling.factor", 0); }, "scaling.factor is 0"},
    {"scaling_factor_nan", [](B& f) { f.set_f32("llama.rope.scaling.factor", kNan); }, "scaling.factor is nan"},
    {"scale_linear_negative", [](B& f) { f.set_f32("llama.rope.scale_linear", -2); }, "scale_linear is -2"},
    {"yarn_without_factor", [](B& f) { f.set_string("llama.rope.scaling.type", "yarn"); }, "scaling.factor is missing"},
    {"yarn_other_beta", [](B& f) { f.set_f32("llama.rope.scaling.yarn_beta_fast", 16); }, "beta_fast other than 32"},
    {"original_context_0", [](B& f) { f.set_u32("llama.rope.scaling.original_context_length", 0); }, "_length is 0"},
    {"expert_count", [](B& f) { f.set_u32("llama.expert_count", 8); }, "a mixture of experts (llama.expert_count = 8)"},
    {"mla_rank", [](B& f) { f.set_u32("llama.attention.kv_lora_rank", 512); }, "multi-head latent attention"},
    {"sliding_window", [](B& f) { f.set_u32("llama.attention.sliding_window", 64); }, "sliding-window attention"},
    {"softcapping", [](B& f) { f.set_f32("llama.attn_logit_softcapping", 50); }, "soft-capped attention scores"},
    {"logit_scale", [](B& f) { f.set_f32("llama.logit_scale", 0.5f); }, "scaled logits"},
    {"not_causal", [](B& f) { f.set_bool("llama.attention.causal", 0); }, "not a causal language model"},
};

const BadFile kVocabulary[] = {
    {"no_tokenizer", [](B& f) { f.remove("tokenizer.ggml.model"); }, "the file holds no tokenizer"},
    {"kind_unknown", [](B& f) { f.set_string("tokenizer.ggml.model", "t5"); }, "tokenizer of kind 't5'"},
    {"kind_number", [](B& f) { f.set_u32("tokenizer.ggml.model", 1); }, "tokenizer.ggml.model is not a string"},
    {"pre_of_raw_text", [](B& f) { f.set_string("tokenizer.ggml.pre", "whitespace"); }, "pre-tokenizer 'whitespace'"},
    {"pre_number", [](B& f) { f.set_u32("tokenizer.ggml.pre", 1); }, "tokenizer.ggml.pre is not a string"},
    {"no_tokens", [](B& f) { f.remove("tokenizer.ggml.tokens"); }, "tokenizer.ggml.tokens is missing"},
    {"tokens_empty", [](B& f) { f.set_strings("tokenizer.ggml.tokens", {}); }, "tokenizer.ggml.tokens is empty"},
    {"tokens_integers", [](B& f) { f.set_i32s("tokenizer.ggml.tokens", {1}); }, "tokens is not an array of strings"},
    {"tokens_scalar", [](B& f) { f.set_u32("tokenizer.ggml.tokens", 12); }, "tokens is not an array of strings"},
    {"token_twice",
     [](B& f) {
       f.set_strings("tokenizer.ggml.tokens", {"a", "b", "a"});
     },
     "token 2 ('a') appears twice"},
    {"token_like_empty_name",
     [](B& f) {
       f.set_strings("tokenizer.ggml.tokens", {"[EMPTY_1]", ""});
     },
     "appears twice"},
    {"token_zero_byte", [](B& f) { f.set_strings("tokenizer.ggml.tokens", {std::string("a\0", 2)}); }, "zero byte"},
    {"token_too_long", [](B& f) { f.set_strings("tokenizer.ggml.tokens", {std::string(4097, 'a')}); },
     "token 0 is 4097 bytes long; at most 4096"},
    {"merge_too_long", [](B& f) { f.set_strings("tokenizer.ggml.merges", {"a " + std::string(4096, 'a')}); },
     "merge 0 is 4098 bytes long; at most 4097"},
    {"types_shorter", [](B& f) { f.set_i32s("tokenizer.ggml.token_type", {1}); }, "1 elements but"},
    {"types_floats", [](B& f) { f.set_f32s("tokenizer.ggml.token_type", {1}); }, "not an array of 32-bit integers"},
    {"types_bytes",
     [](B& f) {
       f.set("tokenizer.ggml.token_type", kArray, raw(kU8) + raw(std::uint64_t{12}) + std::string(12, '\1'));
     },
     "not an array of 32-bit integers"},
    {"type_out_of_range",
     [](B& f) {
       f.set_i32s("tokenizer.ggml.token_type", {3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 7});
     },
     "[11] is 7"},
    {"byte_type_without_byte",
     [](B& f) {
       f.set_i32s("tokenizer.ggml.token_type", {3, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1, 1});
     },
     "not like '<0x0A>'"},
    {"scores_shorter",
     [](B& f) {
       f.set_f32s("tokenizer.ggml.scores", {0, 0});
     },
     "2 elements but"},
    {"scores_longer", [](B& f) { f.set_f32s("tokenizer.ggml.scores", std::vector<float>(13)); }, "13 elements but"},
    {"scores_integers", [](B& f) { f.set_i32s("tokenizer.ggml.scores", std::vector<std::int32_t>(12)); },
     "32-bit floats"},
    {"scores_nan", [](B& f) { f.set_f32s("tokenizer.ggml.scores", std::vector<float>(12, kNan)); }, "[0] is nan"},
    {"no_merges", [](B& f) { f.remove("tokenizer.ggml.merges"); }, "tokenizer.ggml.merges is missing"},
    {"merges_integers", [](B& f) { f.set_i32s("tokenizer.ggml.merges", {1}); }, "merges is not an array of strings"},
    {"merge_without_space", [](B& f) { f.set_strings("tokenizer.ggml.merges", {"ab"}); },
     "merge 0 ('ab') is not a pair"},
    {"merge_empty",
     [](B& f) {
       f.set_strings("tokenizer.ggml.merges", {"a b", ""});
     },
     "merge 1 ('') is not a pair"},
    {"merge_without_second", [](B& f) { f.set_strings("tokenizer.ggml.merges", {"a "}); }, "is not a pair"},
    {"bos_out_of_range", [](B& f) { f.set_u32("tokenizer.ggml.bos_token_id", 12); }, "is 12 but the vocabulary has 12"},
    {"eos_minus_1", [](B& f) { f.set_u32("tokenizer.ggml.eos_token_id", 0xffffffff); }, "is 4294967295 but"},
    {"padding_string", [](B& f) { f.set_string("tokenizer.ggml.padding_token_id", "0"); }, "not a 32-bit unsigned"},
    {"suppressed_out_of_range", [](B& f) { f.set_i32s("tokenizer.ggml.suppress_tokens", {-1}); }, "holds -1"},
    {"add_bos_integer", [](B& f) { f.set_u32("tokenizer.ggml.add_bos_token", 1); }, "add_bos_token is not a boolean"},
    {"add_bos_without_bos",
     [](B& f) {
       f.set_bool("tokenizer.ggml.add_bos_token", 1);
       f.remove("tokenizer.ggml.bos_token_id");
     },
     "bos_token_id is missing"},
    {"pre_adds_bos_without_bos",
     [](B& f) {
       f.set_string("tokenizer.ggml.pre", "llama-bpe");
       f.remove("tokenizer.ggml.add_bos_token");
       f.remove("tokenizer.ggml.bos_token_id");
     },
     "bos_token_id is missing"},
    {"add_eos_without_eos",
     [](B& f) {
       f.set_bool("tokenizer.ggml.add_eos_token", 1);
       f.remove("tokenizer.ggml.eos_token_id");
     },
     "eos_token_id is missing"},
    {"template_number", [](B& f) { f.set_u32("tokenizer.chat_template", 1); }, "chat_template is not a string"},
    {"sentencepiece_without_bytes", [](B& f) { f.set_string("tokenizer.ggml.model", "llama"); },
     "no token for byte <0x00>"},
};

class BadFileTest : public testing::TestWithParam<BadFile> {};

TEST_P(BadFileTest, IsRefusedByName) {
  GgufBuilder file = tiny_model();
  GetParam().spoil(file);
  const std::vector<std::byte> bytes = file.bytes();
  std::string error;
  try {
    const Model model(GgufFile(bytes, "bad.gguf"));
  } catch (const UserError& refused) {
    error = refused.what();
  }
  EXPECT_THAT(error, testing::StartsWith("'bad.gguf': "));
  EXPECT_THAT(error, testing::HasSubstr(GetParam().expected));
  EXPECT_EQ(error.find_first_of("\n\x1b"), std::string::npos);
}

std::string row_name(const testing::TestParamInfo<BadFile>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Container, BadFileTest, testing::ValuesIn(kContainer), row_name);
INSTANTIATE_TEST_SUITE_P(Tensors, BadFileTest, testing::ValuesIn(kTensors), row_name);
INSTANTIATE_TEST_SUITE_P(Config, BadFileTest, testing::ValuesIn(kConfig), row_name);
INSTANTIATE_TEST_SUITE_P(Vocabulary, BadFileTest, testing::ValuesIn(kVocabulary), row_name);

}  // namespace
}  // namespace glimpse::model
