// Text to token ids and back, and the model's own chat template. Built from checked metadata: libllama's reader never
// sees the file. Owns its vocabulary. After construction every const member may be called from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/base/metadata.h"

namespace glimpse::text {

using Token = std::int32_t;

class TokenTexts;

/// A function that an answer calls.
struct ToolCall {
  std::string id, name;
  std::string arguments;  ///< JSON
};

struct ChatMessage {
  std::string role;  ///< "system", "user", "assistant", "tool"
  std::string content;
  std::vector<ToolCall> calls = {};     ///< of an assistant
  std::string call_id = {}, name = {};  ///< of a tool: which call it answers, and its own
};

struct ToolWish;
struct AnswerFormat;

/// What a template has beside the messages, by its names there: JSON texts.
using TemplateValues = std::map<std::string, std::string>;

/// Whether the text of control tokens ("<|im_start|>") becomes the tokens or stays text.
enum class Special : std::uint8_t { as_text, as_tokens };

class Tokenizer {
 public:
  /// Throws UserError when the metadata holds no tokenizer that is known, or arrays that contradict each other.
  explicit Tokenizer(const Metadata& metadata);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  int size() const;
  bool adds_bos() const;
  Token bos() const;  ///< -1: none, here and below
  Token eos() const;
  Token pad() const;
  bool ends_generation(Token token) const;
  bool is_control(Token token) const;

  /// Token ids of a text. Invalid UTF-8 throws UserError with the byte offset. `add_bos` puts the model's
  /// beginning-of-sequence token first where the model wants one and the text did not give it. A byte-level vocabulary
  /// that lacks a byte leaves it out, as libllama does (SmolLM2's lacks six ASCII controls and planes 4 to 11).
  std::vector<Token> encode(std::string_view text, Special special, bool add_bos) const;

  /// The bytes of a token; may be part of a UTF-8 sequence. Control tokens give nothing unless `with_control`.
  std::string piece(Token token, bool with_control = false) const;
  /// The text that `tokens` encode: without the space that SentencePiece puts before a text. What is generated goes on
  /// from a prompt: join its pieces instead.
  std::string decode(std::span<const Token> tokens, bool with_control = false) const;

  /// The texts of all tokens but control tokens, made on the first call.
  std::shared_ptr<const TokenTexts> token_texts() const;

  bool has_chat_template() const;
  /// Its source, as the model's file has it; empty: there is none.
  std::string_view chat_template() const;
  /// The template's rendering as ids: template text may form control tokens, message text never does. Throws
  /// UserError when there is no template or it refuses the messages.
  std::vector<Token> apply_chat(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                const TemplateValues& values = {}) const;
  /// The rendering of messages with tools or calls in them, and how an answer to it is read. Throws UserError as
  /// render_with_tools (chat_tools.h) does.
  std::vector<Token> apply_tools(std::span<const ChatMessage> messages, const ToolWish& wish,
                                 AnswerFormat& format) const;
  /// The same renderings as plain text, for people and tests.
  std::string render_chat(std::span<const ChatMessage> messages, bool add_generation_prompt,
                          const TemplateValues& values = {}) const;
  std::string render_tools(std::span<const ChatMessage> messages, const ToolWish& wish) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Gives out only whole UTF-8 sequences of a byte stream.
class Utf8Stream {
 public:
  /// The bytes that are complete now. Bytes that can never be valid come out as U+FFFD.
  std::string push(std::string_view bytes);
  /// What is left at the end, as U+FFFD.
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace glimpse::text
