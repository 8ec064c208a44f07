// The examples that roles are trained on: passkeys of words in a long book, one of which is asked for (LycheeDecode,
// section 4.1, after DuoAttention). Borrows the tokenizer; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "glimpse/evaluate/tasks/prompts.h"

namespace glimpse::train {

struct PasskeyExample {
  std::vector<text::Token> tokens;  ///< the prompt, then the passkey
  std::int64_t first = 0;           ///< of the passkey's tokens
};

class PasskeyExamples {
 public:
  /// `prose` of the user's own comes before what is generated; may be empty. Throws UserError when `length` tokens hold
  /// no book with its passkeys.
  PasskeyExamples(const text::Tokenizer& tokenizer, const std::string& prose, std::int64_t length, std::uint64_t seed);

  /// A function of step and what the object was made of. kQuestions steps on end ask of one book, so that what reads
  /// the prompts reads the book once.
  PasskeyExample at(int step);
  static constexpr int kQuestions = 4;

 private:
  const text::Tokenizer& tokenizer_;
  evaluate::PromptMaker maker_;
  std::int64_t length_;
  std::uint64_t seed_;
  std::int64_t book_ = -1;
  std::vector<evaluate::RetrievalPrompt> prompts_;  ///< of that book
};

}  // namespace glimpse::train
