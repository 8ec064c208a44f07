#include "gguf_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace glimpse::model {
namespace {

constexpr std::uint32_t kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9;

template <class T>
std::string raw_array(std::uint32_t element, const std::vector<T>& values) {
  std::string payload = raw(element) + raw(static_cast<std::uint64_t>(values.size()));
  for (const T& value : values) payload += raw(value);
  return payload;
}

std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(fmt::format("<0x{:02X}>", byte));
  return tokens;
}

}  // namespace

std::string raw_string(const std::string& text) {
  return raw(static_cast<std::uint64_t>(text.size())) + text;
}

void GgufBuilder::set(const std::string& key, std::uint32_t type, std::string payload) {
  const auto found = std::find_if(pairs.begin(), pairs.end(), [&](const BuilderPair& pair) { return pair.key == key; });
  if (found == pairs.end()) {
    pairs.push_back({key, type, std::move(payload)});
  } else {
    *found = {key, type, std::move(payload)};
  }
}
void GgufBuilder::set_u32(const std::string& key, std::uint32_t value) {
  set(key, kU32, raw(value));
}
void GgufBuilder::set_f32(const std::string& key, float value) {
  set(key, kF32, raw(value));
}
void GgufBuilder::set_bool(const std::string& key, std::uint8_t value) {
  set(key, kBool, raw(value));
}
void GgufBuilder::set_string(const std::string& key, const std::string& value) {
  set(key, kString, raw_string(value));
}
void GgufBuilder::set_strings(const std::string& key, const std::vector<std::string>& values) {
  std::string payload = raw(kString) + raw(static_cast<std::uint64_t>(values.size()));
  for (const std::string& value : values) payload += raw_string(value);
  set(key, kArray, payload);
}
void GgufBuilder::set_i32s(const std::string& key, const std::vector<std::int32_t>& values) {
  set(key, kArray, raw_array(kI32, values));
}
void GgufBuilder::set_u32s(const std::string& key, const std::vector<std::uint32_t>& values) {
  set(key, kArray, raw_array(kU32, values));
}
void GgufBuilder::set_f32s(const std::string& key, const std::vector<float>& values) {
  set(key, kArray, raw_array(kF32, values));
}
void GgufBuilder::remove(const std::string& key) {
  std::erase_if(pairs, [&](const BuilderPair& pair) { return pair.key == key; });
}

void GgufBuilder::add_tensor(const std::string& name, const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= extent;
  BuilderTensor tensor{name, shape, 0, {}, std::nullopt, std::nullopt};
  for (std::int64_t i = 0; i < elements; ++i) tensor.data += raw(0.5f + 0.001f * static_cast<float>(i % 97));
  tensors.push_back(std::move(tensor));
}
void GgufBuilder::remove_tensor(const std::string& name) {
  std::erase_if(tensors, [&](const BuilderTensor& tensor) { return tensor.name == name; });
}
BuilderTensor& GgufBuilder::tensor(const std::string& name) {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const BuilderTensor& tensor) { return tensor.name == name; });
  if (found == tensors.end()) throw std::logic_error("no tensor " + name);
  return *found;
}

std::vector<std::byte> GgufBuilder::bytes() const {
  const auto padded = [this](std::size_t size) { return (size + alignment - 1) / alignment * alignment; };
  std::string file =
      magic + raw(version) + raw(claimed_tensors.value_or(tensors.size())) + raw(claimed_pairs.value_or(pairs.size()));
  for (const BuilderPair& pair : pairs) file += raw_string(pair.key) + raw(pair.type) + pair.payload;
  std::uint64_t offset = 0;
  for (const BuilderTensor& tensor : tensors) {
    file += raw_string(tensor.name);
    file += raw(tensor.dimension_count.value_or(static_cast<std::uint32_t>(tensor.shape.size())));
    for (const std::int64_t extent : tensor.shape) file += raw(extent);
    file += raw(tensor.type) + raw(tensor.offset.value_or(offset));
    offset = padded(offset + tensor.data.size());
  }
  for (const BuilderTensor& tensor : tensors) {
    file.resize(padded(file.size()));
    file += tensor.data;
  }
  std::vector<std::byte> result(file.size());
  std::memcpy(result.data(), file.data(), file.size());
  return result;
}

GgufBuilder tiny_model(const std::string& architecture) {
  GgufBuilder file;
  const auto key = [&](const std::string& name) { return architecture + "." + name; };
  file.set_string("general.architecture", architecture);
  file.set_string("general.name", "tiny");
  file.set_u32("general.alignment", 32);
  file.set_u32(key("block_count"), 1);
  file.set_u32(key("context_length"), 128);
  file.set_u32(key("embedding_length"), 16);
  file.set_u32(key("feed_forward_length"), 16);
  file.set_u32(key("attention.head_count"), 2);
  file.set_u32(key("attention.head_count_kv"), 1);
  file.set_u32(key("attention.key_length"), 16);
  file.set_u32(key("attention.value_length"), 16);
  file.set_f32(key("attention.layer_norm_rms_epsilon"), 1e-5f);
  file.set_u32(key("rope.dimension_count"), 16);
  file.set_f32(key("rope.freq_base"), 10000.0f);
  file.set_string("tokenizer.ggml.model", "gpt2");
  file.set_string("tokenizer.ggml.pre", "smollm");
  file.set_strings("tokenizer.ggml.tokens", {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "c", "d", "ab",
                                             "cd", "abcd", "\xc4\xa0", "\xc4\x8a"});
  file.set_i32s("tokenizer.ggml.token_type", {3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  file.set_strings("tokenizer.ggml.merges", {"a b", "c d", "ab cd"});
  file.set_u32("tokenizer.ggml.bos_token_id", 1);
  file.set_u32("tokenizer.ggml.eos_token_id", 2);
  file.set_bool("tokenizer.ggml.add_bos_token", 0);
  file.add_tensor("token_embd.weight", {16, 12});
  file.add_tensor("output_norm.weight", {16});
  file.add_tensor("blk.0.attn_norm.weight", {16});
  file.add_tensor("blk.0.attn_q.weight", {16, 32});
  file.add_tensor("blk.0.attn_k.weight", {16, 16});
  file.add_tensor("blk.0.attn_v.weight", {16, 16});
  file.add_tensor("blk.0.attn_output.weight", {32, 16});
  if (architecture == "qwen2") {
    file.add_tensor("blk.0.attn_q.bias", {32});
    file.add_tensor("blk.0.attn_k.bias", {16});
    file.add_tensor("blk.0.attn_v.bias", {16});
  }
  if (architecture == "qwen3") {
    file.add_tensor("blk.0.attn_q_norm.weight", {16});
    file.add_tensor("blk.0.attn_k_norm.weight", {16});
  }
  file.add_tensor("blk.0.ffn_norm.weight", {16});
  file.add_tensor("blk.0.ffn_gate.weight", {16, 16});
  file.add_tensor("blk.0.ffn_up.weight", {16, 16});
  file.add_tensor("blk.0.ffn_down.weight", {16, 16});
  return file;
}

GgufBuilder tiny_sentencepiece_model() {
  GgufBuilder file = tiny_model();
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  const std::vector<std::string> bytes = byte_tokens();
  tokens.insert(tokens.end(), bytes.begin(), bytes.end());
  tokens.push_back("\xe2\x96\x81");
  std::vector<std::int32_t> types(tokens.size(), 6);
  types[0] = 2;
  types[1] = types[2] = 3;
  types.back() = 1;
  file.set_string("tokenizer.ggml.model", "llama");
  file.remove("tokenizer.ggml.merges");
  file.set_strings("tokenizer.ggml.tokens", tokens);
  file.set_i32s("tokenizer.ggml.token_type", types);
  file.set_f32s("tokenizer.ggml.scores", std::vector<float>(tokens.size(), -1.0f));
  file.remove_tensor("token_embd.weight");
  file.add_tensor("token_embd.weight", {16, static_cast<std::int64_t>(tokens.size())});
  return file;
}

}  // namespace glimpse::model
