// Prompts with something hidden in them, in the phrasing that the 32K evaluation model was made for: needles with one
// or four keys, variable tracking, passkeys. A prompt is a function of task, length and seed alone. Borrows the
// tokenizer; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/text/tokenizer.h"

namespace glimpse::bench {

enum class Task : std::uint8_t {
  single,    ///< one key, a number of seven digits
  multikey,  ///< four keys, one is asked for
  vt,        ///< a chain of five variables, all are asked for
  passkey,   ///< ten passkeys of 32 words, one is asked for
};
std::string_view name(Task task);
/// Throws UserError with the nearest name.
Task parse_task(std::string_view text);

struct RetrievalPrompt {
  std::vector<text::Token> tokens;  ///< the chat template's rendering, ready for the answer
  std::string content;              ///< the user's message
  std::vector<std::string> wanted;  ///< all that the answer must hold
};

/// The share of `wanted` that the answer holds, as whole words, white space and case aside.
double share_found(std::string_view answer, const std::vector<std::string>& wanted);

class PromptMaker {
 public:
  /// `filler` is prose with sentences; throws UserError when it has fewer than 50.
  PromptMaker(const text::Tokenizer& tokenizer, std::string_view filler);

  /// At most `length` tokens, and few less. Throws UserError when the statements leave no room for prose.
  RetrievalPrompt make(Task task, std::int64_t length, std::uint64_t seed) const;

 private:
  struct Sentence {
    std::string text;  ///< without the white space after it
    std::string gap;   ///< that white space
    std::int64_t tokens = 0;
  };
  std::vector<text::Token> render(const std::string& content) const;

  const text::Tokenizer& tokenizer_;
  std::vector<Sentence> sentences_;
};

}  // namespace glimpse::bench
