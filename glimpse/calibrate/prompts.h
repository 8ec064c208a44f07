// Prompts with something hidden in them, in the phrasing that the 32K evaluation model was made for: needles with one
// or four keys, variable tracking, passkeys. A prompt is a function of task, length and seed alone. Borrows the
// tokenizer; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/calibrate/quiz.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::calibrate {

struct RetrievalPrompt {
  std::vector<text::Token> tokens;  ///< the chat template's rendering, ready for the answer
  std::string content;              ///< the user's message
  std::vector<std::string> wanted;  ///< all that the answer must hold
};

class PromptMaker {
 public:
  /// `filler` is prose with sentences; throws UserError when it has fewer than 50.
  PromptMaker(const text::Tokenizer& tokenizer, std::string_view filler);

  /// At most `length` tokens, and few less. Throws UserError when the statements leave no room for prose.
  RetrievalPrompt make(Task task, std::int64_t length, std::uint64_t seed) const;
  /// The same haystack with up to `most` of its questions, the one that make() asks first. Of the others a prompt may
  /// be a few tokens longer than `length`.
  std::vector<RetrievalPrompt> make_all(Task task, std::int64_t length, std::uint64_t seed, std::size_t most) const;
  /// Plain prose, `length` tokens of it.
  std::vector<text::Token> prose(std::int64_t length, std::uint64_t seed) const;

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

}  // namespace glimpse::calibrate
