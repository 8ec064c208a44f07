// The examples: the passkey that is asked for stands in the book once, and a step's example is its own.
#include "glimpse/train/passkeys.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/support.h"
#include "tests/support/refusal.h"

namespace glimpse::train {
namespace {

std::string text_of(const text::Tokenizer& tokenizer, std::span<const text::Token> tokens) {
  std::string text;
  for (const text::Token token : tokens) text += tokenizer.piece(token);
  return text;
}

TEST(Passkeys, TheTargetIsInThePromptOnce) {
  const engine::Engine engine(engine::options_for(reference::test_model("llama")));
  PasskeyExamples examples(engine.tokenizer(), "", 9000, 5);
  for (int step = 0; step < 6; ++step) {
    const PasskeyExample example = examples.at(step);
    const auto all = std::span<const text::Token>(example.tokens);
    const std::string prompt = text_of(engine.tokenizer(), all.first(static_cast<std::size_t>(example.first)));
    const std::string key = text_of(engine.tokenizer(), all.subspan(static_cast<std::size_t>(example.first)));
    EXPECT_LE(example.first, 9200);
    EXPECT_EQ(std::count(key.begin(), key.end(), ' '), 31) << key;
    const std::size_t place = prompt.find(key);
    ASSERT_NE(place, std::string::npos) << key;
    EXPECT_EQ(prompt.find(key, place + 1), std::string::npos);
  }
}

TEST(Passkeys, AStepsExampleDoesNotDependOnTheOthers) {
  const engine::Engine engine(engine::options_for(reference::test_model("llama")));
  PasskeyExamples one(engine.tokenizer(), "", 9000, 5), other(engine.tokenizer(), "", 9000, 5);
  const PasskeyExample first = one.at(9);
  for (int step = 0; step < 9; ++step) EXPECT_NE(other.at(step).tokens, first.tokens);
  EXPECT_EQ(other.at(9).tokens, first.tokens);
}

TEST(Passkeys, ALengthThatHoldsNoneIsRefused) {
  const engine::Engine engine(engine::options_for(reference::test_model("llama")));
  EXPECT_NE(refusal([&] { PasskeyExamples(engine.tokenizer(), "", 300, 5); }).find("a prompt of 300 tokens"),
            std::string::npos);
}

}  // namespace
}  // namespace glimpse::train
