// Engine::decode: tokens of several sequences in one pass give what each sequence gives alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "glimpse/base/error.h"
#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::size_t kPrompt = 200, kTokens = 6;

EngineOptions several(const std::string& model = "llama") {
  EngineOptions options = options_for(reference::test_model(model));
  options.sequences = 8;
  return options;
}

Sequence prefilled(Engine& engine, const std::string& policy, std::uint32_t seed) {
  Sequence sequence = engine.open(make(engine, policy, policy == "full" ? policies::PolicyOptions{} : budget("48")));
  sequence.prefill(random_tokens(kPrompt, engine.tokenizer().size(), seed));
  return sequence;
}

// No more rows than those whose bits do not depend on each other (RowCosts::same_bits).
TEST(DecodeTogether, HasTheBitsOfEachAlone) {
  Engine engine(several());
  const std::vector<std::string> policies{"full", "tidal", "h2o", "quest"};
  std::vector<Sequence> together, alone;
  std::vector<std::vector<Token>> tokens;
  for (std::uint32_t i = 0; i < policies.size(); ++i) {
    together.push_back(prefilled(engine, policies[i], i));
    alone.push_back(prefilled(engine, policies[i], i));
    tokens.push_back(random_tokens(kTokens, engine.tokenizer().size(), 100 + i));
  }
  for (std::size_t step = 0; step < kTokens; ++step) {
    std::vector<NextToken> next;
    for (std::size_t i = 0; i < together.size(); ++i) next.push_back({&together[i], tokens[i][step], step == 1});
    const std::span<const float> got = engine.decode(next);
    const std::vector<float> logits(got.begin(), got.end());
    const std::size_t vocabulary = logits.size() / next.size();
    for (std::size_t i = 0; i < alone.size(); ++i) {
      EXPECT_TRUE(
          same_bits(std::span(logits).subspan(i * vocabulary, vocabulary), alone[i].decode(tokens[i][step], step == 1)))
          << policies[i] << " at " << step;
    }
  }
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(together[i].length(), alone[i].length());
    EXPECT_EQ(together[i].stats().bytes_read, alone[i].stats().bytes_read);
    EXPECT_EQ(together[i].stats().audits, alone[i].stats().audits);
  }
}

TEST(DecodeTogether, RefusesWithNothingDone) {
  Engine engine(several()), other(several());
  Sequence first = prefilled(engine, "full", 1), second = prefilled(engine, "full", 2);
  Sequence foreign = prefilled(other, "full", 3);
  const auto refused = [&](std::vector<NextToken> tokens, const std::string& why) {
    EXPECT_THAT([&] { engine.decode(tokens); }, ThrowsMessage<UserError>(HasSubstr(why)));
    EXPECT_EQ(first.length(), static_cast<std::int64_t>(kPrompt));
  };
  refused({}, "no tokens");
  refused({{&first, 1}, {&second, 1}, {&first, 2}}, "named twice");
  refused({{&first, 1}, {&foreign, 1}}, "another engine's");
  refused({{&first, 1}, {&second, engine.tokenizer().size()}}, "vocabulary");
  Sequence gone = std::move(second);
  refused({{&first, 1}, {&second, 1}}, "moved from");
  engine.decode(std::vector<NextToken>{{&first, 1}, {&gone, 1}});
  EXPECT_EQ(first.length(), static_cast<std::int64_t>(kPrompt) + 1);
}

TEST(DecodeTogether, OneThatFailsLeavesTheOthers) {
  Engine engine(several());
  Sequence fails = prefilled(engine, "h2o", 1), goes_on = prefilled(engine, "tidal", 2),
           alone = prefilled(engine, "tidal", 2);
  fails.on_sets([](const SetTrace&) { throw std::runtime_error("the callback's own"); });
  const std::vector<NextToken> tokens{{&fails, 5}, {&goes_on, 6}};
  EXPECT_THAT([&] { engine.decode(tokens); }, ThrowsMessage<std::runtime_error>(HasSubstr("the callback's own")));
  EXPECT_THAT([&] { fails.decode(5); }, ThrowsMessage<UserError>(HasSubstr("the callback's own")));
  alone.decode(6);
  EXPECT_EQ(goes_on.length(), alone.length());
  EXPECT_TRUE(same_bits(decoded(goes_on, random_tokens(4, engine.tokenizer().size())),
                        decoded(alone, random_tokens(4, engine.tokenizer().size()))));
}

}  // namespace
}  // namespace glimpse::engine
