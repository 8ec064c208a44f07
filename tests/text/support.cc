#include "support.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

#include "tests/support/places.h"

namespace glimpse::text::testing {
namespace {

template <class T>
std::vector<std::int64_t> integers(const void* data, std::size_t count) {
  const T* values = static_cast<const T*>(data);
  return {values, values + count};
}

MetaArray array_of(const gguf_context* context, std::int64_t id) {
  MetaArray array;
  array.element = static_cast<MetaType>(gguf_get_arr_type(context, id));
  const std::size_t count = gguf_get_arr_n(context, id);
  if (array.element == MetaType::string) {
    for (std::size_t i = 0; i < count; ++i) array.strings.push_back(gguf_get_arr_str(context, id, i));
    return array;
  }
  const void* data = gguf_get_arr_data(context, id);
  switch (array.element) {
    case MetaType::f32:
      array.reals.assign(static_cast<const float*>(data), static_cast<const float*>(data) + count);
      break;
    case MetaType::i32:
      array.integers = integers<std::int32_t>(data, count);
      break;
    case MetaType::u32:
      array.integers = integers<std::uint32_t>(data, count);
      break;
    case MetaType::u8:
      array.integers = integers<std::uint8_t>(data, count);
      break;
    default:
      throw std::runtime_error("array type not used by these tests");
  }
  return array;
}

std::filesystem::path cache_folder() {
  if (const char* cache = std::getenv("GLIMPSE_CACHE")) return cache;
  if (const char* xdg = std::getenv("XDG_CACHE_HOME")) return std::filesystem::path(xdg) / "glimpse";
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home == nullptr ? "/" : home) / ".cache/glimpse";
}

NamedModel named(std::string name, const std::filesystem::path& path) {
  return {std::move(name), std::filesystem::exists(path) ? path : std::filesystem::path()};
}

/// GPT-2's reversible spelling of a byte as a visible character.
std::string byte_spelling(int byte) {
  const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
  int point = byte;
  if (!visible) point = 256 + (byte <= 32 ? byte : byte == 0xAD ? 67 : byte - 127 + 33);
  if (point < 0x80) return std::string(1, static_cast<char>(point));
  return {static_cast<char>(0xC0 | (point >> 6)), static_cast<char>(0x80 | (point & 0x3F))};
}

void set_tokens(gguf_context* context, const std::vector<std::string>& tokens, const std::vector<std::int32_t>& types) {
  set_strings(context, "tokenizer.ggml.tokens", tokens);
  gguf_set_arr_data(context, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
}

}  // namespace

Metadata metadata_of(const gguf_context* context) {
  Metadata metadata;
  for (std::int64_t id = 0; id < gguf_get_n_kv(context); ++id) {
    MetaValue value;
    value.type = static_cast<MetaType>(gguf_get_kv_type(context, id));
    switch (value.type) {
      case MetaType::string:
        value.value = std::string_view(gguf_get_val_str(context, id));
        break;
      case MetaType::array:
        value.value = array_of(context, id);
        break;
      case MetaType::boolean:
        value.value = std::int64_t{gguf_get_val_bool(context, id)};
        break;
      case MetaType::u32:
        value.value = std::int64_t{gguf_get_val_u32(context, id)};
        break;
      case MetaType::i32:
        value.value = std::int64_t{gguf_get_val_i32(context, id)};
        break;
      case MetaType::f32:
        value.value = double{gguf_get_val_f32(context, id)};
        break;
      default:
        throw std::runtime_error("value type not used by these tests");
    }
    metadata.values.emplace(gguf_get_key(context, id), std::move(value));
  }
  return metadata;
}

Reference::Reference(const std::filesystem::path& path) {
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  model_.reset(llama_model_load_from_file(path.c_str(), params));
  if (model_ == nullptr) throw std::runtime_error(fmt::format("libllama does not load {}", path.string()));
}

std::vector<Token> Reference::tokenize(std::string_view text, bool add_special, bool parse_special) const {
  std::vector<Token> ids(text.size() + 8);
  const int count = llama_tokenize(vocab(), text.data(), static_cast<int>(text.size()), ids.data(),
                                   static_cast<int>(ids.size()), add_special, parse_special);
  if (count < 0) throw std::runtime_error("libllama needs more tokens than bytes");
  ids.resize(static_cast<std::size_t>(count));
  return ids;
}

Pair::Pair(const std::filesystem::path& path)
    : context(gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = nullptr})),
      ours(metadata_of(context.get())),
      reference(path) {}

NamedModel evaluation_model() {
  return named("evaluation", test::shared_folder() / "models/smollm2-135m-32k.Q8_0.gguf");
}

NamedModel embedded_model() {
  return named("embedded", cache_folder() / "models/SmolLM2-135M-Instruct.Q4_1.gguf");
}

void set_strings(gguf_context* context, const char* key, const std::vector<std::string>& values) {
  std::vector<const char*> pointers;
  for (const std::string& value : values) pointers.push_back(value.c_str());
  gguf_set_arr_str(context, key, pointers.data(), pointers.size());
}

GgufPointer small_bpe() {
  GgufPointer context(gguf_init_empty());
  std::vector<std::string> tokens{"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"};
  std::vector<std::int32_t> types{3, 3, 3, 4};
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(byte_spelling(byte));
  const std::string space = byte_spelling(' '), newline = byte_spelling('\n');
  const std::vector<std::pair<std::string, std::string>> merges{{"h", "e"},    {"l", "l"},       {"he", "ll"},
                                                                {"hell", "o"}, {space, "hello"}, {newline, newline}};
  std::vector<std::string> merge_texts;
  for (const auto& [left, right] : merges) {
    tokens.push_back(left + right);
    merge_texts.push_back(left + " " + right);
  }
  types.resize(tokens.size(), 1);
  gguf_set_val_str(context.get(), "general.architecture", "llama");
  gguf_set_val_str(context.get(), "tokenizer.ggml.model", "gpt2");
  gguf_set_val_str(context.get(), "tokenizer.ggml.pre", "smollm");
  set_tokens(context.get(), tokens, types);
  set_strings(context.get(), "tokenizer.ggml.merges", merge_texts);
  gguf_set_val_u32(context.get(), "tokenizer.ggml.bos_token_id", 1);
  gguf_set_val_u32(context.get(), "tokenizer.ggml.eos_token_id", 2);
  gguf_set_val_bool(context.get(), "tokenizer.ggml.add_bos_token", false);
  return context;
}

GgufPointer small_sentencepiece() {
  GgufPointer context(gguf_init_empty());
  std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
  std::vector<std::int32_t> types{2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(fmt::format("<0x{:02X}>", byte));
    types.push_back(6);
  }
  const std::string space = "\xE2\x96\x81";
  for (const char* text : {"h", "e", "l", "o", "[", "]", "I", "N", "S", "T", "/", "he", "ll", "hell", "hello", "[/"}) {
    tokens.emplace_back(text);
  }
  for (const char* text : {"", "hello", "[", "h"}) tokens.push_back(space + text);
  types.resize(tokens.size(), 1);
  std::vector<float> scores(tokens.size());
  for (std::size_t i = 0; i < scores.size(); ++i)
    scores[i] = tokens[i].size() > 3 ? -1.0f - 0.01f * i : -50.0f - 0.01f * i;
  gguf_set_val_str(context.get(), "general.architecture", "llama");
  gguf_set_val_str(context.get(), "tokenizer.ggml.model", "llama");
  set_tokens(context.get(), tokens, types);
  gguf_set_arr_data(context.get(), "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(), scores.size());
  gguf_set_val_u32(context.get(), "tokenizer.ggml.bos_token_id", 1);
  gguf_set_val_u32(context.get(), "tokenizer.ggml.eos_token_id", 2);
  gguf_set_val_u32(context.get(), "tokenizer.ggml.unknown_token_id", 0);
  return context;
}

TemporaryFile::TemporaryFile(const gguf_context* context, std::string_view name)
    : path_(std::filesystem::temp_directory_path() / fmt::format("glimpse-text-{}-{}.gguf", name, getpid())) {
  if (!gguf_write_to_file(context, path_.c_str(), false)) throw std::runtime_error("cannot write " + path_.string());
}

TemporaryFile::~TemporaryFile() {
  std::filesystem::remove(path_);
}

std::string random_text(std::mt19937_64& random, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    constexpr std::uint32_t kEnds[] = {0x80, 0x800, 0x10000, 0x110000};
    std::uint32_t point = static_cast<std::uint32_t>(random() % kEnds[random() % 4]);
    if (point >= 0xD800 && point < 0xE000) point -= 0x1000;
    const auto tail = [&](int shift) { return static_cast<char>(0x80 | ((point >> shift) & 0x3F)); };
    if (point < 0x80) {
      text += static_cast<char>(point);
    } else if (point < 0x800) {
      text += {static_cast<char>(0xC0 | (point >> 6)), tail(0)};
    } else if (point < 0x10000) {
      text += {static_cast<char>(0xE0 | (point >> 12)), tail(6), tail(0)};
    } else {
      text += {static_cast<char>(0xF0 | (point >> 18)), tail(12), tail(6), tail(0)};
    }
  }
  return text;
}

}  // namespace glimpse::text::testing
