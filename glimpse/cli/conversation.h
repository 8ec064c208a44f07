// A chat as tokens: each question's prompt goes on from exactly the tokens that the answers before it were made of, so
// that the sequence in the cache can be gone on from. A value that borrows the tokenizer; one thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "glimpse/text/tokenizer.h"

namespace glimpse::cli {

class Conversation {
 public:
  /// `raw`: questions and answers follow one another without the model's chat template.
  Conversation(const text::Tokenizer& tokenizer, bool raw, std::optional<std::string> system);

  /// The prompt for a question. Nothing is noted: a question that is refused leaves no trace.
  std::vector<text::Token> prompt_for(const std::string& question) const;

  /// Notes a question, its prompt and what was answered (tokens without the one that ends the text).
  struct Turn {
    std::string question;
    std::vector<text::Token> prompt;
    std::vector<text::Token> answer;
    std::string answer_text;
  };
  void add(Turn turn);

 private:
  const text::Tokenizer* tokenizer_;
  bool raw_;
  std::vector<text::ChatMessage> messages_;
  std::vector<text::Token> said_;  ///< the last prompt and its answer; empty before the first
};

}  // namespace glimpse::cli
