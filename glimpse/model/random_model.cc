#include "glimpse/model/random_model.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <ggml.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <span>
#include <string_view>
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

constexpr std::uint64_t kAlignment = 32;
constexpr std::size_t kMostDims = 2;

/// What GGUF calls the types of values that are written here.
enum class Kind : std::uint32_t { u32 = 4, f32 = 6, text = 8, list = 9 };

struct Tensor {
  std::string name;
  std::int64_t width = 0, rows = 0;  ///< rows 0: a vector of f32
  ggml_type type = GGML_TYPE_F32;
  std::size_t bytes() const {
    return ggml_row_size(type, width) * static_cast<std::size_t>(std::max<std::int64_t>(rows, 1));
  }
};

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// The head of a GGUF file: keys, then where each tensor lies.
class Head {
 public:
  void number(const std::string& key, std::int64_t value) {
    begin(key, Kind::u32);
    put(keys_, static_cast<std::uint32_t>(value));
  }
  void real(const std::string& key, float value) {
    begin(key, Kind::f32);
    put(keys_, value);
  }
  void text(const std::string& key, std::string_view value) {
    begin(key, Kind::text);
    put_text(keys_, value);
  }
  void texts(const std::string& key, const std::vector<std::string>& values) {
    begin(key, Kind::list);
    put(keys_, static_cast<std::uint32_t>(Kind::text));
    put(keys_, static_cast<std::uint64_t>(values.size()));
    for (const std::string& value : values) put_text(keys_, value);
  }
  std::string bytes(std::span<const Tensor> tensors) const {
    std::string all = "GGUF";
    put(all, std::uint32_t{3});
    put(all, static_cast<std::uint64_t>(tensors.size()));
    put(all, count_);
    all += keys_;
    std::uint64_t offset = 0;
    for (const Tensor& tensor : tensors) {
      put_text(all, tensor.name);
      put(all, static_cast<std::uint32_t>(tensor.rows == 0 ? 1 : kMostDims));
      put(all, static_cast<std::uint64_t>(tensor.width));
      if (tensor.rows > 0) put(all, static_cast<std::uint64_t>(tensor.rows));
      put(all, static_cast<std::uint32_t>(tensor.type));
      put(all, offset);
      offset += aligned(tensor.bytes());
    }
    all.resize(aligned(all.size()), '\0');
    return all;
  }

 private:
  template <class T>
  static void put(std::string& to, T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    to.append(raw, sizeof(T));
  }
  static void put_text(std::string& to, std::string_view text) {
    put(to, static_cast<std::uint64_t>(text.size()));
    to += text;
  }
  void begin(const std::string& key, Kind kind) {
    put_text(keys_, key);
    put(keys_, static_cast<std::uint32_t>(kind));
    ++count_;
  }

  std::string keys_;
  std::uint64_t count_ = 0;
};

std::vector<Tensor> tensors_of(const ModelSize& shape, ggml_type type) {
  std::vector<Tensor> tensors;
  const auto add = [&](const std::string& name, std::int64_t width, std::int64_t rows) {
    tensors.push_back({name, width, rows, rows == 0 ? GGML_TYPE_F32 : type});
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
    if (std::string_view(shape.architecture) == "qwen3") {
      add(block + "attn_q_norm.weight", shape.dim, 0);
      add(block + "attn_k_norm.weight", shape.dim, 0);
    }
    add(block + "ffn_norm.weight", shape.hidden, 0);
    add(block + "ffn_gate.weight", shape.hidden, shape.feed_forward);
    add(block + "ffn_up.weight", shape.hidden, shape.feed_forward);
    add(block + "ffn_down.weight", shape.feed_forward, shape.hidden);
  }
  return tensors;
}

Head head_of(const ModelSize& shape, std::int64_t context) {
  Head head;
  const std::string a = shape.architecture;
  head.text("general.architecture", a);
  head.text("general.name", shape.name);
  head.number(a + ".block_count", shape.layers);
  head.number(a + ".context_length", context);
  head.number(a + ".embedding_length", shape.hidden);
  head.number(a + ".feed_forward_length", shape.feed_forward);
  head.number(a + ".attention.head_count", shape.heads);
  head.number(a + ".attention.head_count_kv", shape.kv_heads);
  head.number(a + ".attention.key_length", shape.dim);
  head.number(a + ".attention.value_length", shape.dim);
  head.number(a + ".rope.dimension_count", shape.dim);
  head.number(a + ".vocab_size", shape.vocabulary);
  head.real(a + ".rope.freq_base", 500000);
  head.real(a + ".attention.layer_norm_rms_epsilon", 1e-5F);
  std::vector<std::string> words;
  for (int i = 0; i < shape.vocabulary; ++i) words.push_back(fmt::format("t{}", i));
  head.text("tokenizer.ggml.model", "gpt2");
  head.text("tokenizer.ggml.pre", "gpt-2");
  head.texts("tokenizer.ggml.tokens", words);
  head.texts("tokenizer.ggml.merges", {"t 0"});
  return head;
}

/// Matrices of small normal values, the same block of them again and again; norms of ones.
void write_values(std::ostream& out, std::span<const Tensor> tensors, ggml_type type) {
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
  const std::string zeros(kAlignment, '\0');
  std::size_t shift = 0;
  for (const Tensor& tensor : tensors) {
    const std::size_t bytes = tensor.bytes();
    if (tensor.type == GGML_TYPE_F32) {
      out.write(reinterpret_cast<const char*>(ones.data()), static_cast<std::streamsize>(bytes));
    } else {
      for (std::size_t left = bytes; left > 0;) {
        const std::size_t count = std::min(left, block.size() - shift);
        out.write(reinterpret_cast<const char*>(block.data() + shift), static_cast<std::streamsize>(count));
        left -= count;
        shift = (shift + count + 2345 * unit) % block.size();  // rows are not all alike
      }
    }
    out.write(zeros.data(), static_cast<std::streamsize>(aligned(bytes) - bytes));
  }
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

RandomModel::RandomModel(const ModelSize& shape, const std::filesystem::path& folder, const Content& content) {
  const auto type = static_cast<ggml_type>(content.weights.number);
  const std::vector<Tensor> tensors = tensors_of(shape, type);
  for (const Tensor& tensor : tensors) {
    if (tensor.width % ggml_blck_size(tensor.type) == 0) continue;
    throw UserError(fmt::format("'{}' has rows of {} values, and blocks of {} have {}; take another type of weights",
                                shape.name, tensor.width, content.weights.name, ggml_blck_size(tensor.type)));
  }
  std::string name = (folder / "glimpse-random-XXXXXX").string();
  file_ = ::mkostemp(name.data(), O_CLOEXEC);
  const int error = errno;
  if (file_ >= 0) {
    ::unlink(name.c_str());
    path_ = fmt::format("/proc/self/fd/{}", file_);
    std::ofstream out(path_, std::ios::binary);
    const std::string head = head_of(shape, content.context).bytes(tensors);
    out.write(head.data(), static_cast<std::streamsize>(head.size()));
    write_values(out, tensors, type);
    if (out.flush()) return;
    ::close(file_);
  }
  throw UserError(
      fmt::format("a model of '{}' cannot be written in '{}'{}; give a folder of temporary files (TMPDIR) "
                  "that has room",
                  shape.name, folder.string(), file_ < 0 ? fmt::format(": {}", std::strerror(error)) : std::string()));
}

RandomModel::~RandomModel() {
  ::close(file_);
}

}  // namespace glimpse::model
