#include "glimpse/model/vocabulary_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "glimpse/model/file_error.h"

namespace glimpse::model {
namespace {

constexpr std::size_t kMaxTokenBytes = 4096;  // libllama takes time by the square of a token's length
constexpr std::int64_t kFirstTokenType = 0, kLastTokenType = 6, kByteType = 6;  // llama_token_type

/// Pre-tokenizers of libllama that put a BOS first unless the file says otherwise.
constexpr std::array<std::string_view, 11> kPreAddsBos = {"llama3",       "llama-v3", "llama-bpe", "falcon3",
                                                          "falcon-h1",    "pixtral",  "midm-2.0",  "lfm2",
                                                          "jina-v5-nano", "tekken",   "chameleon"};
/// They feed raw text, not byte symbols, to the merges, where libllama asserts that no space is left.
constexpr std::array<std::string_view, 4> kPreOfRawText = {"whitespace", "gemma4", "granite-embed-multi-311m",
                                                           "sarvam-moe"};

template <std::size_t N>
bool contains(const std::array<std::string_view, N>& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

class VocabularyCheck {
 public:
  VocabularyCheck(const Metadata& metadata, const std::string& label) : metadata_(metadata), label_(label) {}

  std::size_t run() {
    check_kind();
    check_tokens();
    check_scores();
    check_token_types();
    if (bpe_) {
      check_merges();
    } else {
      check_bytes();
    }
    check_ids();
    check_flags();
    check_additions();
    for (const std::string_view key : {"tokenizer.chat_template", "general.name"}) string(key);
    return tokens_->size();
  }

 private:
  template <class... Arguments>
  [[noreturn]] void fail(fmt::format_string<Arguments...> what, Arguments&&... arguments) const {
    fail_file(label_, what, std::forward<Arguments>(arguments)...);
  }

  std::optional<std::string_view> string(std::string_view key) const {
    if (metadata_.find(key) == nullptr) return std::nullopt;
    const auto text = metadata_.string(key);
    if (!text) fail("{} is not a string", key);
    return text;
  }

  /// Null when absent; otherwise an array of that element type.
  const MetaArray* array(std::string_view key, MetaType element, std::string_view element_name) const {
    if (metadata_.find(key) == nullptr) return nullptr;
    const MetaArray* found = metadata_.array(key);
    if (found == nullptr || found->element != element) fail("{} is not an array of {}", key, element_name);
    return found;
  }

  void check_kind() {
    const auto model = string("tokenizer.ggml.model");
    if (!model) fail("tokenizer.ggml.model is missing: the file holds no tokenizer");
    if (*model != "gpt2" && *model != "llama") {
      fail("has a tokenizer of kind '{}'; 'gpt2' (BPE) and 'llama' (SentencePiece) are supported", shown(*model));
    }
    bpe_ = *model == "gpt2";
    pre_ = string("tokenizer.ggml.pre").value_or("");
    if (bpe_ && contains(kPreOfRawText, pre_)) fail("has pre-tokenizer '{}', which is not supported", pre_);
  }

  void check_tokens() {
    tokens_ = array("tokenizer.ggml.tokens", MetaType::string, "strings");
    if (tokens_ == nullptr) fail("tokenizer.ggml.tokens is missing");
    const std::vector<std::string_view>& tokens = tokens_->strings;
    if (tokens.empty()) fail("tokenizer.ggml.tokens is empty");
    std::unordered_set<std::string> seen;
    seen.reserve(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      check_text("token", i, tokens[i], kMaxTokenBytes);
      // libllama names an empty token like this, and asserts that all differ.
      const std::string text = tokens[i].empty() ? fmt::format("[EMPTY_{}]", i) : std::string(tokens[i]);
      if (!seen.insert(text).second) fail("token {} ('{}') appears twice in tokenizer.ggml.tokens", i, shown(text));
    }
  }

  void check_text(std::string_view what, std::size_t index, std::string_view text, std::size_t most) const {
    if (text.size() > most) {
      fail("{} {} is {} bytes long; at most {} are allowed: convert the model again with another vocabulary", what,
           index, text.size(), most);
    }
    if (text.find('\0') != std::string_view::npos) fail("{} {} holds a zero byte", what, index);
  }

  void check_length(std::string_view key, std::size_t length) const {
    if (length != tokens_->size()) {
      fail("{} has {} elements but tokenizer.ggml.tokens has {}", key, length, tokens_->size());
    }
  }

  void check_scores() const {
    constexpr std::string_view kKey = "tokenizer.ggml.scores";
    const MetaArray* scores = array(kKey, MetaType::f32, "32-bit floats");
    if (scores == nullptr) return;
    check_length(kKey, scores->size());
    for (std::size_t i = 0; i < scores->size(); ++i) {
      if (!std::isfinite(scores->reals[i])) fail("{}[{}] is {}; it must be finite", kKey, i, scores->reals[i]);
    }
  }

  void check_token_types() const {
    constexpr std::string_view kKey = "tokenizer.ggml.token_type";
    const MetaArray* types = array(kKey, MetaType::i32, "32-bit integers");
    if (types == nullptr) return;
    check_length(kKey, types->size());
    for (std::size_t i = 0; i < types->size(); ++i) {
      const std::int64_t type = types->integers[i];
      if (type < kFirstTokenType || type > kLastTokenType) {
        fail("{}[{}] is {}; it must be from {} to {}", kKey, i, type, kFirstTokenType, kLastTokenType);
      }
      if (type == kByteType && !is_byte_token(tokens_->strings[i])) {
        fail("token {} is of byte type but its text is '{}', not like '<0x0A>'", i, shown(tokens_->strings[i]));
      }
    }
  }

  static bool is_byte_token(std::string_view text) {
    const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F') || (c >= 'a' && c <= 'f'); };
    return text.size() == 6 && text.starts_with("<0x") && hex(text[3]) && hex(text[4]) && text[5] == '>';
  }

  void check_merges() const {
    const MetaArray* merges = array("tokenizer.ggml.merges", MetaType::string, "strings");
    if (merges == nullptr) fail("tokenizer.ggml.merges is missing");
    for (std::size_t i = 0; i < merges->size(); ++i) {
      const std::string_view merge = merges->strings[i];
      check_text("merge", i, merge, kMaxTokenBytes + 1);  // a token and a space
      const std::size_t space = merge.find(' ', 1);
      if (space == std::string_view::npos || space + 1 == merge.size()) {
        fail("merge {} ('{}') is not a pair separated by a space", i, shown(merge));
      }
    }
  }

  /// libllama throws in the middle of a text whose byte has no token.
  void check_bytes() const {
    const std::unordered_set<std::string_view> known(tokens_->strings.begin(), tokens_->strings.end());
    for (int byte = 0; byte < 256; ++byte) {
      const char single = static_cast<char>(byte);
      if (known.count(fmt::format("<0x{:02X}>", byte)) == 0 && known.count({&single, 1}) == 0) {
        fail("the vocabulary has no token for byte <0x{:02X}>", byte);
      }
    }
  }

  std::optional<std::int64_t> id(std::string_view name) const {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
    const MetaValue* value = metadata_.find(key);
    if (value == nullptr) return std::nullopt;
    if (value->type != MetaType::u32) fail("{} is not a 32-bit unsigned integer", key);
    const std::int64_t number = std::get<std::int64_t>(value->value);
    if (static_cast<std::size_t>(number) >= tokens_->size()) {
      fail("{} is {} but the vocabulary has {} tokens", key, number, tokens_->size());
    }
    return number;
  }

  void check_ids() const {
    for (const std::string_view name :
         {"bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "cls", "mask", "fim_pre", "fim_suf", "fim_mid",
          "fim_pad", "fim_rep", "fim_sep", "prefix", "suffix", "middle"}) {
      id(name);
    }
    constexpr std::string_view kSuppressed = "tokenizer.ggml.suppress_tokens";
    const MetaArray* suppressed = array(kSuppressed, MetaType::i32, "32-bit integers");
    if (suppressed == nullptr) return;
    for (const std::int64_t token : suppressed->integers) {
      if (token < 0 || static_cast<std::size_t>(token) >= tokens_->size()) {
        fail("{} holds {} but the vocabulary has {} tokens", kSuppressed, token, tokens_->size());
      }
    }
  }

  std::optional<bool> flag(std::string_view key) const {
    const MetaValue* value = metadata_.find(key);
    if (value == nullptr) return std::nullopt;
    if (value->type != MetaType::boolean) fail("{} is not a boolean", key);
    return std::get<std::int64_t>(value->value) != 0;
  }

  void check_flags() const {
    for (const std::string_view key :
         {"tokenizer.ggml.add_sep_token", "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.remove_extra_whitespaces",
          "tokenizer.ggml.normalizer.lowercase", "tokenizer.ggml.normalizer.strip_accents"}) {
      flag(key);
    }
    const MetaValue* count = metadata_.find("tokenizer.ggml.token_type_count");
    if (count != nullptr && count->type != MetaType::u32) {
      fail("tokenizer.ggml.token_type_count is not a 32-bit unsigned integer");
    }
  }

  /// SentencePiece vocabularies have default ids in libllama (1 and 2); for BPE the file must say them.
  void check_additions() const {
    const bool adds_bos = flag("tokenizer.ggml.add_bos_token").value_or(bpe_ ? contains(kPreAddsBos, pre_) : true);
    if (adds_bos && !id("bos") && (bpe_ || tokens_->size() <= 1)) {
      fail("a BOS token is to be added, but tokenizer.ggml.bos_token_id is missing");
    }
    const bool adds_eos = flag("tokenizer.ggml.add_eos_token").value_or(false);
    if (adds_eos && !id("eos") && (bpe_ || tokens_->size() <= 2)) {
      fail("an EOS token is to be added, but tokenizer.ggml.eos_token_id is missing");
    }
  }

  const Metadata& metadata_;
  const std::string& label_;
  const MetaArray* tokens_ = nullptr;
  bool bpe_ = false;
  std::string_view pre_;
};

}  // namespace

std::size_t check_vocabulary(const Metadata& metadata, const std::string& label) {
  return VocabularyCheck(metadata, label).run();
}

}  // namespace glimpse::model
