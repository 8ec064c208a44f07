#include "glimpse/model/random_model.h"

#include <fmt/format.h>
#include <ggml.h>
#include <gguf.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <fstream>
#include <random>
#include <vector>

#include "glimpse/base/dtype.h"
#include "glimpse/base/error.h"

namespace glimpse::model {
namespace {

constexpr ModelSize kSizes[] = {
    {"llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, 128256},
    {"qwen3-8b", 36, 4096, 12288, 32, 8, 128, 151936, "qwen3"},
    {"qwen3-32b", 64, 5120, 25600, 64, 8, 128, 151936, "qwen3"},
    {"llama-2-7b", 32, 4096, 11008, 32, 32, 128, 32000},
    {"smollm2-135m", 30, 576, 1536, 9, 3, 64, 49152},
};

/// Matrices of small normal values, the same block of them again and again; norms of ones.
void write_values(const std::filesystem::path& path, ggml_context* headers, std::streamoff at, std::size_t alignment,
                  ggml_type type) {
  constexpr int kWidth = 4096;
  constexpr int kRows = 1024;
  std::vector<float> values(std::size_t{kWidth} * kRows);
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 0.02F);
  for (float& value : values) value = normal(random);
  std::vector<std::byte> block(ggml_row_size(type, kWidth) * kRows);
  if (type == GGML_TYPE_BF16) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint16_t bits = bf16_from_float(values[i]);
      std::memcpy(block.data() + 2 * i, &bits, sizeof bits);
    }
  } else {
    ggml_quantize_chunk(type, values.data(), block.data(), 0, kRows, kWidth, nullptr);
  }
  const std::size_t unit = ggml_type_size(type);  // shifts are whole blocks
  const std::vector<float> ones(1 << 16, 1.0F);
  std::ofstream out(path, std::ios::binary | std::ios::in);
  std::size_t shift = 0;
  for (ggml_tensor* t = ggml_get_first_tensor(headers); t != nullptr; t = ggml_get_next_tensor(headers, t)) {
    out.seekp(at);
    if (t->type == GGML_TYPE_F32) {
      out.write(reinterpret_cast<const char*>(ones.data()), static_cast<std::streamsize>(ggml_nbytes(t)));
    } else {
      for (std::size_t left = ggml_nbytes(t); left > 0;) {
        const std::size_t count = std::min(left, block.size() - shift);
        out.write(reinterpret_cast<const char*>(block.data() + shift), static_cast<std::streamsize>(count));
        left -= count;
        shift = (shift + count + 2345 * unit) % block.size();  // rows are not all alike
      }
    }
    at += static_cast<std::streamoff>((ggml_nbytes(t) + alignment - 1) / alignment * alignment);
  }
  out.seekp(at - 1);
  out.put('\0');
  if (!out.flush())
    throw UserError(
        fmt::format("'{}' cannot be written; give the folder of temporary files (TMPDIR) more room", path.string()));
}

}  // namespace

const ModelSize& model_size(const std::string& name) {
  const auto* const found =
      std::find_if(std::begin(kSizes), std::end(kSizes), [&](const ModelSize& size) { return size.name == name; });
  if (found != std::end(kSizes)) return *found;
  std::string all;
  for (const ModelSize& size : kSizes) all += fmt::format(" {}", size.name);
  throw UserError(fmt::format("unknown shape '{}'; there are:{}", name, all));
}

double WeightType::bytes(double weights) const {
  const auto type = static_cast<ggml_type>(number);
  return weights / static_cast<double>(ggml_blck_size(type)) * static_cast<double>(ggml_type_size(type));
}

WeightType weight_type(const std::string& name) {
  std::string all;
  for (const ggml_type type : {GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q6_K, GGML_TYPE_Q5_K, GGML_TYPE_Q5_0,
                               GGML_TYPE_Q5_1, GGML_TYPE_Q4_K, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1}) {
    std::string known = ggml_type_name(type);
    std::transform(known.begin(), known.end(), known.begin(), [](unsigned char c) { return std::tolower(c); });
    if (known == name) return {name, type};
    all += " " + known;
  }
  throw UserError(fmt::format("unknown type of weights '{}'; there are:{}", name, all));
}

RandomModel::RandomModel(const ModelSize& shape, const std::filesystem::path& folder, const Content& content)
    : path_(folder / fmt::format("{}-random-{}.gguf", shape.name, ::getpid())) {
  gguf_context* const file = gguf_init_empty();
  ggml_context* const headers = ggml_init({ggml_tensor_overhead() * 1024, nullptr, true});
  const std::string a = shape.architecture;
  const auto type = static_cast<ggml_type>(content.weights.number);
  gguf_set_val_str(file, "general.architecture", a.c_str());
  gguf_set_val_str(file, "general.name", shape.name);
  const auto number = [&](const char* key, std::int64_t value) {
    gguf_set_val_u32(file, (a + key).c_str(), static_cast<std::uint32_t>(value));
  };
  number(".block_count", shape.layers);
  number(".context_length", content.context);
  number(".embedding_length", shape.hidden);
  number(".feed_forward_length", shape.feed_forward);
  number(".attention.head_count", shape.heads);
  number(".attention.head_count_kv", shape.kv_heads);
  number(".attention.key_length", shape.dim);
  number(".attention.value_length", shape.dim);
  number(".rope.dimension_count", shape.dim);
  number(".vocab_size", shape.vocabulary);
  std::vector<std::string> words(static_cast<std::size_t>(shape.vocabulary));
  std::vector<const char*> tokens;
  for (std::size_t i = 0; i < words.size(); ++i) tokens.push_back((words[i] = fmt::format("t{}", i)).c_str());
  gguf_set_val_str(file, "tokenizer.ggml.model", "gpt2");
  gguf_set_val_str(file, "tokenizer.ggml.pre", "gpt-2");
  gguf_set_arr_str(file, "tokenizer.ggml.tokens", tokens.data(), tokens.size());
  const char* merge = "t 0";
  gguf_set_arr_str(file, "tokenizer.ggml.merges", &merge, 1);
  gguf_set_val_f32(file, (a + ".rope.freq_base").c_str(), 500000);
  gguf_set_val_f32(file, (a + ".attention.layer_norm_rms_epsilon").c_str(), 1e-5F);
  const auto add = [&](const std::string& name, std::int64_t width, std::int64_t rows) {
    ggml_tensor* const tensor =
        rows == 0 ? ggml_new_tensor_1d(headers, GGML_TYPE_F32, width) : ggml_new_tensor_2d(headers, type, width, rows);
    ggml_set_name(tensor, name.c_str());
    gguf_add_tensor(file, tensor);
  };
  const std::int64_t q = std::int64_t{shape.heads} * shape.dim, kv = std::int64_t{shape.kv_heads} * shape.dim;
  add("token_embd.weight", shape.hidden, shape.vocabulary);
  add("output.weight", shape.hidden, shape.vocabulary);
  add("output_norm.weight", shape.hidden, 0);
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string block = fmt::format("blk.{}.", layer);
    add(block + "attn_norm.weight", shape.hidden, 0);
    add(block + "attn_q.weight", shape.hidden, q);
    add(block + "attn_k.weight", shape.hidden, kv);
    add(block + "attn_v.weight", shape.hidden, kv);
    add(block + "attn_output.weight", q, shape.hidden);
    if (a == "qwen3") {
      add(block + "attn_q_norm.weight", shape.dim, 0);
      add(block + "attn_k_norm.weight", shape.dim, 0);
    }
    add(block + "ffn_norm.weight", shape.hidden, 0);
    add(block + "ffn_gate.weight", shape.hidden, shape.feed_forward);
    add(block + "ffn_up.weight", shape.hidden, shape.feed_forward);
    add(block + "ffn_down.weight", shape.feed_forward, shape.hidden);
  }
  gguf_write_to_file(file, path_.c_str(), true);
  write_values(path_, headers, static_cast<std::streamoff>(gguf_get_meta_size(file)), gguf_get_alignment(file), type);
  ggml_free(headers);
  gguf_free(file);
}
RandomModel::~RandomModel() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

}  // namespace glimpse::model
