// Prefills that stop half-way, and what is decoded there: what came is the prompt.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "glimpse/base/error.h"
#include "tests/engine/gates.h"
#include "tests/engine/support.h"
#include "tests/support/test_names.h"

namespace glimpse::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::size_t kChunk = 128, kDone = 2 * kChunk, kPrompt = 600, kAnswer = 24;

class StoppedPrompts : public testing::TestWithParam<const char*> {
 protected:
  StoppedPrompts() : engine_(options()) {
    policies::PolicyOptions how = budget("96");
    add_needed(GetParam(), reference::test_model("llama"), how);
    plan_ = make(engine_, GetParam(), how);
    tokens_ = random_tokens(kPrompt + kAnswer, engine_.tokenizer().size(), 19);
  }
  static EngineOptions options() {
    EngineOptions options = options_for(reference::test_model("llama"), KvType::bf16, 1);
    options.prefill_chunk = kChunk;
    return options;
  }
  std::span<const Token> prompt() const { return std::span(tokens_).first(kPrompt); }
  std::span<const Token> answer() const { return std::span(tokens_).last(kAnswer); }
  Sequence stopped() {
    Sequence sequence = engine_.open(plan_);
    int asked = 0;
    EXPECT_TRUE(sequence.prefill(prompt(), {}, 0, [&] { return ++asked <= 2; }).empty());
    EXPECT_EQ(sequence.length(), static_cast<std::int64_t>(kDone));
    return sequence;
  }
  /// The logits of the answer behind a prompt that was no longer.
  std::vector<float> expected() {
    Sequence sequence = engine_.open(plan_);
    sequence.prefill(prompt().first(kDone));
    return decoded(sequence, answer());
  }

  /// Dense rows that a request of the plan goes on from, and which somebody takes before its first pass.
  std::optional<Sequence> taken_at_once() {
    Sequence dense = engine_.open(make(engine_, "full"));
    dense.prefill(prompt().first(kDone));
    Request request;
    request.prompt.assign(prompt().begin(), prompt().end());
    request.plan = plan_;
    request.keep = true;
    const RequestId id = engine_.submit(std::move(request), std::move(dense));
    engine_.cancel(id);
    std::optional<Sequence> taken = engine_.take(id);
    EXPECT_TRUE(taken.has_value());
    EXPECT_EQ(taken ? taken->length() : 0, static_cast<std::int64_t>(kDone));
    return taken;
  }

  Engine engine_;
  plan::Plan plan_;
  std::vector<Token> tokens_;
};

class DecodedThere : public StoppedPrompts {};

TEST_P(DecodedThere, AnswersAsBehindAShorterPrompt) {
  Sequence sequence = stopped();
  EXPECT_TRUE(same_bits(decoded(sequence, answer()), expected()));
}

TEST_P(DecodedThere, AfterACallbackThatThrewToo) {
  Sequence sequence = engine_.open(plan_);
  const auto throws = [&] {
    sequence.prefill(prompt(), [](std::int64_t position, std::span<const float>) {
      if (position + 1 == static_cast<std::int64_t>(kDone)) throw std::runtime_error("enough");
    });
  };
  EXPECT_THAT(throws, ThrowsMessage<std::runtime_error>("enough"));
  ASSERT_EQ(sequence.length(), static_cast<std::int64_t>(kDone));
  EXPECT_TRUE(same_bits(decoded(sequence, answer()), expected()));
}

TEST_P(DecodedThere, ByAForkAndBySomebodyWhoTookItFromACancelledRequest) {
  const std::vector<float> wanted = expected();
  Sequence whole = stopped();
  Sequence fork = whole.fork(plan_);
  EXPECT_TRUE(same_bits(decoded(fork, answer()), wanted));
  Request request;
  request.prompt.assign(prompt().begin(), prompt().end());
  request.plan = plan_;
  request.keep = true;
  RequestId id = 0;
  request.on_prefill = [&](std::int64_t done, std::int64_t) {
    if (done == static_cast<std::int64_t>(kDone)) engine_.cancel(id);
  };
  id = engine_.submit(std::move(request));
  while (engine_.step()) {
  }
  const RequestStats& stats = engine_.result(id).stats;
  EXPECT_EQ(stats.prefilled_tokens, static_cast<std::int64_t>(kDone));
  EXPECT_EQ(stats.prompt_tokens, static_cast<std::int64_t>(kPrompt));
  std::optional<Sequence> kept = engine_.take(id);
  ASSERT_TRUE(kept.has_value());
  EXPECT_TRUE(same_bits(decoded(*kept, answer()), wanted));
}

INSTANTIATE_TEST_SUITE_P(Methods, DecodedThere,
                         testing::Values("tidal", "quest", "raas", "h2o", "clusterkv", "lychee-cluster", "shadowkv",
                                         "seer", "razor", "streaming"),
                         PrintedName());

class DecodedBehindDenseRows : public StoppedPrompts {};

TEST_P(DecodedBehindDenseRows, AnswersAsBehindAShorterPrompt) {
  std::optional<Sequence> sequence = taken_at_once();
  ASSERT_TRUE(sequence.has_value());
  EXPECT_TRUE(same_bits(decoded(*sequence, answer()), expected()));
}

INSTANTIATE_TEST_SUITE_P(Methods, DecodedBehindDenseRows, testing::Values("clusterkv", "shadowkv"),
                         [](const auto& row) { return std::string(row.param); });

class PrefilledFurther : public StoppedPrompts {};

TEST_P(PrefilledFurther, AnswersAsBehindTheWhole) {
  Sequence sequence = stopped();
  sequence.prefill(prompt().subspan(kDone));
  Sequence whole = engine_.open(plan_);
  whole.prefill(prompt());
  EXPECT_TRUE(same_bits(decoded(sequence, answer()), decoded(whole, answer())));
}

TEST_P(PrefilledFurther, DecodingBeforeIsRefusedWhereTheLastRowsAreObserved) {
  Sequence sequence = stopped();
  EXPECT_THAT([&] { sequence.decode(1); },
              ThrowsMessage<UserError>(HasSubstr("the prefill stopped behind 256 tokens")));
  EXPECT_EQ(sequence.length(), static_cast<std::int64_t>(kDone));
  Sequence fork = sequence.fork(make(engine_, "full"));  // observes nothing
  fork.decode(1);
  std::optional<Sequence> taken = taken_at_once();
  ASSERT_TRUE(taken.has_value());
  EXPECT_THAT([&] { taken->decode(1); }, ThrowsMessage<UserError>(HasSubstr("the prefill stopped behind 256 tokens")));
}

INSTANTIATE_TEST_SUITE_P(Methods, PrefilledFurther, testing::Values("evosparse", "tova"),
                         [](const auto& row) { return std::string(row.param); });

}  // namespace
}  // namespace glimpse::engine
