#include "glimpse/train/passkeys.h"

#include <fmt/format.h>

#include "glimpse/evaluate/tasks/prose.h"

namespace glimpse::train {
namespace {

constexpr int kSentences = 900;

std::string filler(const std::string& prose, std::uint64_t seed) {
  return (prose.empty() ? "" : prose + "\n\n") + evaluate::generated_prose(kSentences, seed);
}

}  // namespace

PasskeyExamples::PasskeyExamples(const text::Tokenizer& tokenizer, const std::string& prose, std::int64_t length,
                                 std::uint64_t seed)
    : tokenizer_(tokenizer), maker_(tokenizer, filler(prose, seed)), length_(length), seed_(seed) {
  at(0);
}

PasskeyExample PasskeyExamples::at(int step) {
  const std::int64_t book = step / kQuestions;
  if (book != book_) {
    const std::uint64_t seed = (seed_ << 32) + static_cast<std::uint64_t>(book) + 1;
    prompts_ = maker_.make_all({evaluate::Task::passkey, length_, seed}, kQuestions);
    book_ = book;
  }
  const evaluate::RetrievalPrompt& prompt = prompts_[static_cast<std::size_t>(step) % prompts_.size()];
  PasskeyExample example{prompt.tokens, static_cast<std::int64_t>(prompt.tokens.size())};
  for (const std::string& part : prompt.wanted) {
    const std::vector<text::Token> key = tokenizer_.encode(part, text::Special::as_text, false);
    example.tokens.insert(example.tokens.end(), key.begin(), key.end());
  }
  return example;
}

}  // namespace glimpse::train
