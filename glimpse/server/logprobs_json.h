// Log-probabilities in OpenAI's two shapes: of chats, and the older one of completions. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/server/json.h"
#include "glimpse/text/logprobs.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::server {

/// {content: [{token, logprob, bytes, top_logprobs}]}.
Json chat_logprobs(const text::Tokenizer& tokenizer, std::span<const text::TokenLogprobs> tokens);

/// {tokens, token_logprobs, top_logprobs, text_offset}: of the prompt where it is echoed, then of the answer. It
/// borrows what it is given.
class CompletionLogprobs {
 public:
  /// `offset`: characters before the first token.
  CompletionLogprobs(const text::Tokenizer& tokenizer, std::int64_t offset) : tokenizer_(tokenizer), offset_(offset) {}
  /// A prompt's first token, of which nothing is known, and those behind it.
  void add_prompt(text::Token first, std::span<const text::TokenLogprobs> rest);
  void add(std::span<const text::TokenLogprobs> tokens);
  /// Characters up to the end of the last token.
  std::int64_t offset() const { return offset_; }
  Json json() const;

 private:
  struct Row {
    text::Token token = -1;
    std::int64_t offset = 0;
    const text::TokenLogprobs* known = nullptr;  ///< of the caller
  };
  void place(text::Token token, const text::TokenLogprobs* known);

  const text::Tokenizer& tokenizer_;
  std::int64_t offset_;
  std::vector<Row> rows_;
};

}  // namespace glimpse::server
