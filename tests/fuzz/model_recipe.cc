#include "tests/fuzz/model_recipe.h"

#include <fmt/format.h>
#include <ggml.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>

namespace glimpse::fuzz {
namespace {

using model::BuilderPair;
using model::BuilderTensor;
using model::GgufBuilder;
using model::raw;

/// ggml's numbers of the types that weights may have.
constexpr std::array kTypes{GGML_TYPE_F32,   GGML_TYPE_F16,   GGML_TYPE_BF16,  GGML_TYPE_Q8_0,    GGML_TYPE_Q4_0,
                            GGML_TYPE_Q4_1,  GGML_TYPE_Q5_0,  GGML_TYPE_Q5_1,  GGML_TYPE_IQ4_NL,  GGML_TYPE_Q4_K,
                            GGML_TYPE_Q6_K,  GGML_TYPE_Q2_K,  GGML_TYPE_Q3_K,  GGML_TYPE_Q5_K,    GGML_TYPE_IQ4_XS,
                            GGML_TYPE_IQ3_S, GGML_TYPE_TQ1_0, GGML_TYPE_TQ2_0, GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ1_S,
                            GGML_TYPE_MXFP4};

constexpr const char* kPreTokenizers[] = {"smollm", "default", "llama-bpe", "qwen2",       "gpt-2",   "tekken",
                                          "gpt-4o", "falcon",  "starcoder", "deepseek-v3", "nonsense"};

struct Shape {
  std::string architecture;
  std::uint32_t layers, kv_heads, group, dim, feed_forward, hidden;
};

Shape read_shape(Choices& choices) {
  constexpr const char* kArchitectures[] = {"llama", "qwen2", "qwen3"};
  constexpr std::uint32_t kDims[] = {16, 32, 64, 24, 40, 128, 72, 256};
  constexpr std::uint32_t kOddDims[] = {8, 12, 17, 264};
  constexpr std::uint32_t kGroups[] = {2, 1, 3, 4, 7, 16, 17, 32, 33, 64, 200};
  constexpr std::uint32_t kWidths[] = {32, 64, 256, 16, 256, 48, 1, 8, 33};
  Shape shape;
  shape.architecture = kArchitectures[choices.below(3)];
  shape.layers = static_cast<std::uint32_t>(1 + choices.below(3));
  shape.kv_heads = static_cast<std::uint32_t>(1 + choices.below(3));
  shape.group = kGroups[choices.below(std::size(kGroups))];
  shape.dim = choices.chance(16) ? kOddDims[choices.below(4)] : kDims[choices.below(std::size(kDims))];
  // Wide or many or long: a run under sanitizers is to take less than a second.
  while (shape.kv_heads > 1 && shape.kv_heads * shape.group * shape.dim > 1024) --shape.kv_heads;
  if (shape.group * shape.dim > 1024) shape.dim = std::min(shape.dim, 32U);
  shape.feed_forward = kWidths[choices.below(std::size(kWidths))];
  shape.hidden = kWidths[choices.below(std::size(kWidths))];
  return shape;
}

/// How the weights of a tensor are made.
enum class Fill : std::uint8_t { small, zero, huge, tiny, nan, infinite, one_nan, bits };

/// Not by a search for the best of a table.
bool quantises_fast(ggml_type type) {
  constexpr ggml_type kFast[] = {GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1};
  return std::find(std::begin(kFast), std::end(kFast), type) != std::end(kFast);
}

std::string weights(ggml_type type, std::int64_t elements, std::int64_t width, Fill fill, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto rows = static_cast<std::size_t>(elements / std::max<std::int64_t>(width, 1));
  if (type != GGML_TYPE_F32 && (fill == Fill::bits || width % ggml_blck_size(type) != 0)) {
    std::string data(
        rows * (ggml_row_size(type, (width + ggml_blck_size(type) - 1) / ggml_blck_size(type) * ggml_blck_size(type))),
        '\0');
    for (char& byte : data) byte = static_cast<char>(random());
    return data;
  }
  std::vector<float> values(static_cast<std::size_t>(elements));
  std::normal_distribution<float> normal;
  const float scale = 1.0F / std::sqrt(static_cast<float>(std::max<std::int64_t>(width, 1)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (fill) {
      case Fill::small:
      case Fill::one_nan:
        values[i] = normal(random) * scale;
        break;
      case Fill::zero:
        break;
      case Fill::huge:
        values[i] = normal(random) * 1e20F;
        break;
      case Fill::tiny:
        values[i] = normal(random) * 1e-40F;
        break;
      case Fill::nan:
        values[i] = std::numeric_limits<float>::quiet_NaN();
        break;
      case Fill::infinite:
        values[i] = random() % 2 == 0 ? std::numeric_limits<float>::infinity() : normal(random);
        break;
      case Fill::bits:
        values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
        break;
    }
  }
  if (fill == Fill::one_nan && !values.empty()) {
    values[random() % values.size()] = std::numeric_limits<float>::quiet_NaN();
  }
  if (type == GGML_TYPE_F32) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }
  std::string data(rows * ggml_row_size(type, width), '\0');
  const bool finite = std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
  if (ggml_is_quantized(type) && (!finite || !quantises_fast(type))) {
    // Scales that are f16 become NaN or infinity, or stay below 2.
    for (char& byte : data) byte = static_cast<char>(finite ? random() & 0x3f : random() | 0x7c);
    return data;
  }
  ggml_quantize_chunk(type, values.data(), data.data(), 0, static_cast<std::int64_t>(rows), width, nullptr);
  return data;
}

void add(GgufBuilder& file, Choices& choices, const std::string& name, std::vector<std::int64_t> shape) {
  const bool matrix = shape.size() > 1;
  ggml_type type = GGML_TYPE_F32;
  if (matrix && choices.chance(3)) type = kTypes[choices.below(kTypes.size())];
  // Rows of whole blocks, mostly: what else there is, is refused at load.
  if (shape[0] % ggml_blck_size(type) != 0 && !choices.chance(16)) type = GGML_TYPE_F16;
  if (!matrix) type = choices.chance(40) ? GGML_TYPE_F16 : GGML_TYPE_F32;
  auto fill = Fill::small;
  if (choices.chance(24)) fill = static_cast<Fill>(1 + choices.below(7));
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= extent;
  BuilderTensor tensor;
  tensor.name = name;
  tensor.shape = shape;
  tensor.type = static_cast<std::uint32_t>(type);
  tensor.data = weights(type, elements, shape[0], fill, file.tensors.size());
  file.tensors.push_back(std::move(tensor));
}

float odd_float(Choices& choices) {
  constexpr float kOdd[] = {0,
                            1,
                            -1,
                            0.5F,
                            4,
                            1e-30F,
                            1e30F,
                            3e38F,
                            1e-6F,
                            1e6F,
                            32,
                            -1e9F,
                            1.0001F,
                            std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::denorm_min()};
  return choices.chance(4) ? std::bit_cast<float>(static_cast<std::uint32_t>(choices.bits()))
                           : kOdd[choices.below(std::size(kOdd))];
}

void set_rope(GgufBuilder& file, Choices& choices, const Shape& shape) {
  const auto key = [&](const char* name) { return shape.architecture + ".rope." + name; };
  file.set_u32(key("dimension_count"),
               choices.chance(6) ? static_cast<std::uint32_t>(choices.below(260)) : shape.dim / 2 * 2);
  file.set_f32(key("freq_base"), choices.chance(6) ? odd_float(choices) : 10000.0F);
  if (choices.chance(4)) {
    constexpr const char* kScalings[] = {"yarn", "linear", "none", "longrope", ""};
    file.set_string(key("scaling.type"), kScalings[choices.below(5)]);
    file.set_f32(key("scaling.factor"), choices.chance(2) ? odd_float(choices) : 4.0F);
    if (choices.chance(2)) {
      file.set_u32(key("scaling.original_context_length"), static_cast<std::uint32_t>(choices.odd_number()));
    }
    if (choices.chance(3)) file.set_f32(key("scaling.attn_factor"), odd_float(choices));
  }
  if (choices.chance(8)) add(file, choices, "rope_freqs.weight", {shape.dim / 2});
}

std::int64_t set_vocabulary(GgufBuilder& file, Choices& choices) {
  std::vector<std::string> tokens{"<|endoftext|>",
                                  "<|im_start|>",
                                  "<|im_end|>",
                                  "a",
                                  "b",
                                  "c",
                                  "d",
                                  "ab",
                                  "cd",
                                  "abcd",
                                  "\xc4\xa0",
                                  "\xc4\x8a",
                                  "\xc4\xa0"
                                  "d"};
  const bool sentencepiece = choices.chance(3);
  std::vector<std::int32_t> types(tokens.size(), 1);
  if (sentencepiece) {
    tokens = {"<unk>", "<s>", "</s>"};
    for (int byte = 0; byte < 256; ++byte) tokens.push_back(fmt::format("<0x{:02X}>", byte));
    tokens.insert(tokens.end(), {"\xe2\x96\x81", "a", "b", "ab"});
    types.assign(tokens.size(), 6);
    std::fill(types.end() - 4, types.end(), 1);
  }
  std::fill_n(types.begin(), 3, 3);
  for (std::uint64_t edits = choices.chance(6) ? 1 + choices.below(4) : 0; edits > 0; --edits) {
    const std::size_t at = choices.below(tokens.size());
    constexpr const char* kOdd[] = {"", "a", "\xff\xfe", "<0x41>", "\xe2\x96\x81\xe2\x96\x81", "\xc4\xa0\xc4\xa0"};
    if (choices.chance(2)) tokens[at] = kOdd[choices.below(std::size(kOdd))];
    if (choices.chance(2) && at < types.size()) types[at] = static_cast<std::int32_t>(choices.below(9)) - 1;
    if (choices.chance(8)) tokens.pop_back();
    if (choices.chance(8) && !types.empty()) types.pop_back();
    if (tokens.empty()) break;
  }
  file.set_string("tokenizer.ggml.model", sentencepiece ? "llama" : "gpt2");
  file.set_string("tokenizer.ggml.pre", kPreTokenizers[choices.below(std::size(kPreTokenizers))]);
  file.set_strings("tokenizer.ggml.tokens", tokens);
  file.set_i32s("tokenizer.ggml.token_type", types);
  if (sentencepiece) {
    std::vector<float> scores(tokens.size(), -1.0F);
    if (choices.chance(6)) scores[choices.below(scores.size())] = odd_float(choices);
    file.set_f32s("tokenizer.ggml.scores", scores);
  } else {
    std::vector<std::string> merges{"a b", "c d", "ab cd", "\xc4\xa0 d"};
    constexpr const char* kOdd[] = {"", " ", "a", "a b c", "ab  cd", "zz yy", "\xff a"};
    if (choices.chance(6)) merges[choices.below(merges.size())] = kOdd[choices.below(std::size(kOdd))];
    file.set_strings("tokenizer.ggml.merges", merges);
  }
  const auto id = [&](std::uint32_t usual) {
    return choices.chance(8) ? static_cast<std::uint32_t>(choices.odd_number()) : usual;
  };
  file.set_u32("tokenizer.ggml.bos_token_id", id(1));
  file.set_u32("tokenizer.ggml.eos_token_id", id(2));
  if (choices.chance(4)) file.set_u32("tokenizer.ggml.unknown_token_id", id(0));
  file.set_bool("tokenizer.ggml.add_bos_token", static_cast<std::uint8_t>(choices.below(2)));
  return static_cast<std::int64_t>(tokens.size());
}

GgufBuilder whole_model(Choices& choices) {
  const Shape shape = read_shape(choices);
  GgufBuilder file;
  const auto key = [&](const char* name) { return shape.architecture + "." + name; };
  const std::uint32_t heads = shape.kv_heads * shape.group;
  file.set_string("general.architecture", shape.architecture);
  file.set_string("general.name", "fuzzed");
  file.set_u32("general.alignment", 32);
  file.set_u32(key("block_count"), shape.layers);
  file.set_u32(key("context_length"), choices.chance(8) ? static_cast<std::uint32_t>(choices.odd_number()) : 256);
  file.set_u32(key("embedding_length"), shape.hidden);
  file.set_u32(key("feed_forward_length"), shape.feed_forward);
  file.set_u32(key("attention.head_count"), heads);
  file.set_u32(key("attention.head_count_kv"), shape.kv_heads);
  file.set_u32(key("attention.key_length"), shape.dim);
  file.set_u32(key("attention.value_length"), shape.dim);
  file.set_f32(key("attention.layer_norm_rms_epsilon"), choices.chance(8) ? odd_float(choices) : 1e-5F);
  set_rope(file, choices, shape);
  const std::int64_t vocabulary = set_vocabulary(file, choices);
  const std::int64_t hidden = shape.hidden, width = shape.feed_forward;
  const std::int64_t q = std::int64_t{heads} * shape.dim, kv = std::int64_t{shape.kv_heads} * shape.dim;
  add(file, choices, "token_embd.weight", {hidden, vocabulary});
  add(file, choices, "output_norm.weight", {hidden});
  if (choices.chance(2)) add(file, choices, "output.weight", {hidden, vocabulary});
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    const auto name = [&](const char* part) { return fmt::format("blk.{}.{}", layer, part); };
    add(file, choices, name("attn_norm.weight"), {hidden});
    add(file, choices, name("attn_q.weight"), {hidden, q});
    add(file, choices, name("attn_k.weight"), {hidden, kv});
    add(file, choices, name("attn_v.weight"), {hidden, kv});
    add(file, choices, name("attn_output.weight"), {q, hidden});
    if (shape.architecture == "qwen2") {
      add(file, choices, name("attn_q.bias"), {q});
      add(file, choices, name("attn_k.bias"), {kv});
      add(file, choices, name("attn_v.bias"), {kv});
    }
    if (shape.architecture == "qwen3") {
      add(file, choices, name("attn_q_norm.weight"), {shape.dim});
      add(file, choices, name("attn_k_norm.weight"), {shape.dim});
    }
    add(file, choices, name("ffn_norm.weight"), {hidden});
    add(file, choices, name("ffn_gate.weight"), {hidden, width});
    add(file, choices, name("ffn_up.weight"), {hidden, width});
    add(file, choices, name("ffn_down.weight"), {width, hidden});
  }
  return file;
}

/// Things that do not fit the rest of the file.
void spoil(GgufBuilder& file, Choices& choices) {
  switch (choices.below(6)) {
    case 0: {  // a number of the metadata
      BuilderPair& pair = file.pairs[choices.below(file.pairs.size())];
      const std::uint64_t number = choices.odd_number();
      for (std::size_t i = 0; i < std::min(pair.payload.size(), sizeof number); ++i) {
        pair.payload[i] = static_cast<char>(number >> 8 * i);
      }
      break;
    }
    case 1: {  // its type
      BuilderPair& pair = file.pairs[choices.below(file.pairs.size())];
      pair.type = static_cast<std::uint32_t>(choices.below(14));
      break;
    }
    case 2:
      file.pairs.erase(file.pairs.begin() + static_cast<std::ptrdiff_t>(choices.below(file.pairs.size())));
      break;
    case 3: {
      BuilderTensor& tensor = file.tensors[choices.below(file.tensors.size())];
      if (!tensor.shape.empty()) {
        tensor.shape[choices.below(tensor.shape.size())] = static_cast<std::int64_t>(choices.odd_number());
      }
      break;
    }
    case 4: {
      BuilderTensor& tensor = file.tensors[choices.below(file.tensors.size())];
      tensor.type = static_cast<std::uint32_t>(choices.below(42));
      break;
    }
    default: {
      BuilderTensor& tensor = file.tensors[choices.below(file.tensors.size())];
      tensor.name = file.tensors[choices.below(file.tensors.size())].name;
      if (choices.chance(2)) file.tensors.pop_back();
    }
  }
}

}  // namespace

std::uint64_t Choices::below(std::uint64_t count) {
  std::uint64_t value = 0;
  for (std::uint64_t range = 1; range < count && !bytes_.empty(); range <<= 8) {
    value = value << 8 | bytes_.front();
    bytes_ = bytes_.subspan(1);
    if (range > std::numeric_limits<std::uint64_t>::max() >> 8) break;
  }
  return count == 0 ? 0 : value % count;
}

std::uint64_t Choices::bits() {
  return below(std::uint64_t{1} << 63);
}

std::uint64_t Choices::odd_number() {
  constexpr std::uint64_t kOdd[] = {0,          1,          2,          3,          7,          16,         17,
                                    31,         255,        256,        257,        1023,       4096,       65535,
                                    65536,      1U << 20,   1U << 24,   1U << 30,   0x7fffffff, 0x80000000, 0xffffffff,
                                    1ULL << 32, 1ULL << 40, 1ULL << 62, ~0ULL >> 1, ~0ULL};
  return chance(4) ? bits() : kOdd[below(std::size(kOdd))];
}

ModelRecipe::ModelRecipe(Choices& choices) {
  GgufBuilder file = whole_model(choices);
  for (std::uint64_t edits = choices.chance(3) ? 1 + choices.below(3) : 0; edits > 0; --edits) {
    if (!file.pairs.empty() && !file.tensors.empty()) spoil(file, choices);
  }
  bytes = file.bytes();
}

}  // namespace glimpse::fuzz
