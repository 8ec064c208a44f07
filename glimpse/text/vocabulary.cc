#include "glimpse/text/vocabulary.h"

#include <fmt/format.h>
#include <gguf.h>
#include <llama.h>

#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/base/log.h"
#include "glimpse/base/resources.h"
#include "glimpse/text/pre_tokenizers.h"

namespace glimpse::text {
namespace {

constexpr std::string_view kModel = "tokenizer.ggml.model";
constexpr std::string_view kPre = "tokenizer.ggml.pre";
constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr std::string_view kTypes = "tokenizer.ggml.token_type";
constexpr std::string_view kScores = "tokenizer.ggml.scores";
constexpr std::string_view kMerges = "tokenizer.ggml.merges";

/// The scalar keys that libllama reads for the tokenizers we take; others are not handed on.
constexpr const char* kAddSpace = "tokenizer.ggml.add_space_prefix";
constexpr std::array kFlags{"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
                            "tokenizer.ggml.add_sep_token", kAddSpace, "tokenizer.ggml.remove_extra_whitespaces"};
constexpr std::array kTokenIds{
    "tokenizer.ggml.bos_token_id",     "tokenizer.ggml.eos_token_id",     "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",     "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.seperator_token_id",
    "tokenizer.ggml.padding_token_id", "tokenizer.ggml.mask_token_id",    "tokenizer.ggml.fim_pre_token_id",
    "tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id", "tokenizer.ggml.prefix_token_id",
    "tokenizer.ggml.suffix_token_id",  "tokenizer.ggml.middle_token_id"};

/// libllama explains a failed load only in its log: the last error of this thread.
thread_local std::string last_error;

void receive_log(ggml_log_level level, const char* text, void* /*user*/) {
  std::string_view line = text == nullptr ? "" : text;
  while (!line.empty() && line.back() == '\n') line.remove_suffix(1);
  if (line.empty() || line == ".") return;
  if (level == GGML_LOG_LEVEL_ERROR) {
    if (last_error.empty()) last_error = line;
    return;
  }
  log_message(level == GGML_LOG_LEVEL_WARN ? LogLevel::info : LogLevel::debug, line);
}

void start_libllama() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(receive_log, nullptr);
    ggml_set_abort_callback(AbortTrap::aborting);
    llama_backend_init();
  });
}

struct FreeGguf {
  void operator()(gguf_context* context) const { gguf_free(context); }
};
using GgufPointer = std::unique_ptr<gguf_context, FreeGguf>;

[[noreturn]] void wrong_type(std::string_view key, std::string_view wanted) {
  throw UserError(
      fmt::format("the model's '{}' is not {}; convert the model again with a current converter", key, wanted));
}

std::string required_string(const Metadata& metadata, std::string_view key) {
  if (metadata.find(key) == nullptr) {
    throw UserError(
        fmt::format("the model has no '{}': it holds no tokenizer; convert it again with its vocabulary", key));
  }
  const auto value = metadata.string(key);
  if (!value) wrong_type(key, "a string");
  return std::string(*value);
}

/// Null when the key is missing.
const MetaArray* optional_array(const Metadata& metadata, std::string_view key, MetaType element,
                                std::string_view wanted) {
  if (metadata.find(key) == nullptr) return nullptr;
  const MetaArray* array = metadata.array(key);
  if (array == nullptr || array->element != element) wrong_type(key, wanted);
  return array;
}

void check_length(std::string_view key, std::size_t length, std::size_t tokens) {
  if (length == tokens) return;
  throw UserError(fmt::format("the model's '{}' has {} entries, but '{}' has {}; convert the model again", key, length,
                              kTokens, tokens));
}

/// libllama takes the tokens as C strings, names empty ones, and aborts when two are equal.
std::vector<std::string> distinct_tokens(const MetaArray& tokens) {
  std::vector<std::string> texts;
  texts.reserve(tokens.strings.size());
  std::unordered_set<std::string> seen;
  seen.reserve(tokens.strings.size());
  for (const std::string_view token : tokens.strings) {
    texts.emplace_back(token.substr(0, token.find('\0')));
    const std::string& text = texts.back();
    if (!seen.insert(text.empty() ? fmt::format("[EMPTY_{}]", texts.size() - 1) : text).second) {
      throw UserError(fmt::format("the model's '{}' holds '{}' twice (again at {}); tokens must differ", kTokens, text,
                                  texts.size() - 1));
    }
  }
  return texts;
}

void set_strings(gguf_context* context, std::string_view key, const std::vector<std::string>& texts) {
  std::vector<const char*> pointers;
  pointers.reserve(texts.size());
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  gguf_set_arr_str(context, std::string(key).c_str(), pointers.data(), pointers.size());
}

void set_tokens(gguf_context* context, const Metadata& metadata) {
  const MetaArray* tokens = optional_array(metadata, kTokens, MetaType::string, "an array of strings");
  if (tokens == nullptr || tokens->strings.empty()) {
    throw UserError(
        fmt::format("the model's '{}' is missing or empty; convert the model again with its vocabulary", kTokens));
  }
  const std::size_t count = tokens->strings.size();
  if (count > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw UserError(fmt::format("the model's '{}' has {} entries; at most 2147483647 can be numbered", kTokens, count));
  }
  set_strings(context, kTokens, distinct_tokens(*tokens));

  if (const MetaArray* types = optional_array(metadata, kTypes, MetaType::i32, "an array of 32-bit integers")) {
    check_length(kTypes, types->integers.size(), count);
    const std::vector<std::int32_t> values(types->integers.begin(), types->integers.end());
    gguf_set_arr_data(context, std::string(kTypes).c_str(), GGUF_TYPE_INT32, values.data(), values.size());
  }
  if (metadata.find(kScores) == nullptr) return;
  const MetaArray* scores = metadata.array(kScores);
  if (scores == nullptr || (scores->element != MetaType::f32 && scores->element != MetaType::i32)) {
    wrong_type(kScores, "an array of 32-bit numbers");
  }
  check_length(kScores, scores->size(), count);
  std::vector<float> values(scores->reals.begin(), scores->reals.end());
  if (scores->element == MetaType::i32) values.assign(scores->integers.begin(), scores->integers.end());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isnan(values[i])) continue;
    throw UserError(fmt::format("the model's '{}' is not a number at {}; convert the model again", kScores, i));
  }
  gguf_set_arr_data(context, std::string(kScores).c_str(), GGUF_TYPE_FLOAT32, values.data(), values.size());
}

void set_scalars(gguf_context* context, const Metadata& metadata) {
  for (const char* key : kFlags) {
    if (metadata.find(key) == nullptr) continue;
    const auto value = metadata.integer(key);
    if (!value || (*value != 0 && *value != 1)) wrong_type(key, "true or false");
    gguf_set_val_bool(context, key, *value != 0);
  }
  for (const char* key : kTokenIds) {
    if (metadata.find(key) == nullptr) continue;
    const auto value = metadata.integer(key);
    if (!value) wrong_type(key, "a token id");
    // libllama keeps its default for an id outside the vocabulary; -1 is how some converters write "none".
    if (*value < 0 || *value > std::numeric_limits<std::uint32_t>::max()) {
      log_message(LogLevel::info, fmt::format("the model's '{}' is {}, no token id; not used", key, *value));
      continue;
    }
    gguf_set_val_u32(context, key, static_cast<std::uint32_t>(*value));
  }
}

GgufPointer tokenizer_context(const Metadata& metadata) {
  GgufPointer context(gguf_init_empty());
  check(context != nullptr, "gguf_init_empty gave nothing");
  const std::string model = required_string(metadata, kModel);
  if (model != "llama" && model != "gpt2") {
    throw UserError(fmt::format(
        "the model's tokenizer '{}' is not supported; 'llama' (SentencePiece) and 'gpt2' (byte-level BPE) are", model));
  }
  // The vocabulary does not depend on the architecture, and what is supported there is model's to say.
  gguf_set_val_str(context.get(), "general.architecture", "llama");
  // libllama looks at the name for a few models whose tokens swallow the space beside them.
  if (const auto name = metadata.string("general.name")) {
    gguf_set_val_str(context.get(), "general.name", std::string(*name).c_str());
  }
  gguf_set_val_str(context.get(), std::string(kModel).c_str(), model.c_str());
  if (metadata.find(kPre) != nullptr) {
    gguf_set_val_str(context.get(), std::string(kPre).c_str(), required_string(metadata, kPre).c_str());
  }
  set_tokens(context.get(), metadata);
  if (const MetaArray* merges = optional_array(metadata, kMerges, MetaType::string, "an array of strings")) {
    set_strings(context.get(), kMerges, {merges->strings.begin(), merges->strings.end()});
  } else if (model == "gpt2") {
    throw UserError(fmt::format("the model has no '{}', which its 'gpt2' tokenizer needs; convert it again", kMerges));
  }
  set_scalars(context.get(), metadata);
  gguf_set_val_bool(context.get(), kAddSpace, false);
  return context;
}

}  // namespace

void Vocabulary::Free::operator()(llama_model* model) const {
  llama_model_free(model);
}

Vocabulary::Vocabulary(const Metadata& metadata) {
  const AbortTrap trap("the tokenizer");
  start_libllama();
  const GgufPointer context = tokenizer_context(metadata);
  if (metadata.string(kModel) == "gpt2") {
    const std::string_view name = metadata.string(kPre).value_or("");
    pre_ = &find_pre_tokenizer(name.empty() ? "default" : name);
  }
  ggml_backend_dev_t no_devices[] = {nullptr};
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  params.devices = no_devices;
  last_error.clear();
  model_.reset(llama_model_init_from_user(
      context.get(), [](ggml_tensor*, void*) {}, nullptr, params));
  if (model_ == nullptr) {
    if (last_error.find("bad_alloc") != std::string::npos) throw std::bad_alloc();
    throw UserError(
        fmt::format("the model's tokenizer cannot be used: {}; convert the model again with a current converter",
                    last_error.empty() ? "libllama refuses it" : last_error));
  }
  vocab_ = llama_model_get_vocab(model_.get());
}

}  // namespace glimpse::text
