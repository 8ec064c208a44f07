// Calls that no program should make: one error each, and nothing changed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>

#include "glimpse/base/error.h"
#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Request small_request(const Engine& engine) {
  Request request;
  request.prompt = random_tokens(40, engine.tokenizer().size());
  request.plan = make(engine, "full");
  request.max_tokens = 2;
  request.ignore_end = true;
  return request;
}

/// Every call of a sequence but destroying it and assigning to it.
std::vector<std::function<void()>> calls_of(Sequence& sequence, const plan::Plan& plan) {
  return {[&] { sequence.length(); },        [&] { sequence.stats(); },
          [&] { sequence.reset_stats(); },   [&] { sequence.prefill(std::vector<Token>{1, 2}); },
          [&] { sequence.decode(1); },       [&] { sequence.correct(1); },
          [&] { sequence.fork(plan); },      [&] { sequence.on_sets({}); },
          [&] { sequence.tokens(); },        [&] { sequence.logits(); },
          [&] { sequence.save("nowhere"); }, [&] { sequence.key(0, 0, 0); },
          [&] { sequence.value(0, 0, 0); },  [&] { sequence.heat(0); },
          [&] { sequence.statistic(0, 0); }, [&] { sequence.live(0, 0); }};
}

TEST(Misuse, AnIdThatNoRequestHasIsAnError) {
  Engine engine(options_for(reference::test_model("llama")));
  const RequestId id = engine.submit(small_request(engine));
  while (engine.step()) {
  }
  engine.release(id);
  const auto released = ThrowsMessage<UserError>(HasSubstr("there is no request 1: it has been released"));
  const auto unknown = ThrowsMessage<UserError>(HasSubstr("submit() never gave that id"));
  for (const std::function<void(RequestId)>& call : std::vector<std::function<void(RequestId)>>{
           [&](RequestId each) { engine.cancel(each); }, [&](RequestId each) { engine.finished(each); },
           [&](RequestId each) { engine.result(each); }, [&](RequestId each) { engine.release(each); },
           [&](RequestId each) { engine.take(each); }}) {
    EXPECT_THAT([&] { call(id); }, released);
    for (const RequestId never : {RequestId{0}, RequestId{-1}, RequestId{2}})
      EXPECT_THAT([&] { call(never); }, unknown);
  }
}

TEST(Misuse, ASequenceThatWasMovedFromIsAnError) {
  Engine engine(options_for(reference::test_model("llama")));
  const plan::Plan plan = make(engine, "full");
  Sequence first = engine.open(plan);
  Sequence second = std::move(first);
  for (const auto& call : calls_of(first, plan)) {
    EXPECT_THAT(call, ThrowsMessage<UserError>(HasSubstr("moved from")));
  }
  EXPECT_THAT([&] { engine.submit(small_request(engine), std::move(first)); },
              ThrowsMessage<UserError>(HasSubstr("moved from")));
  EXPECT_FALSE(engine.step());
  first = std::move(second);
  first.prefill(random_tokens(3, engine.tokenizer().size()));
  EXPECT_EQ(first.length(), 3);
}

TEST(Misuse, ASequenceThatARequestTookIsAnError) {
  Engine engine(options_for(reference::test_model("llama")));
  Request request = small_request(engine);
  Sequence sequence = engine.open(request.plan);
  sequence.prefill(std::span(request.prompt).first(20));
  const RequestId id = engine.submit(request, std::move(sequence));
  for (const auto& call : calls_of(sequence, request.plan)) {
    EXPECT_THAT(call, ThrowsMessage<UserError>(HasSubstr("a request took it")));
  }
  while (engine.step()) {
  }
  EXPECT_EQ(engine.result(id).stats.generated_tokens, 2);
}

TEST(Misuse, ASequenceOfAnotherEngineStaysAndIsAnError) {
  Engine engine(options_for(reference::test_model("llama"))), other(options_for(reference::test_model("llama")));
  Sequence sequence = other.open(make(other, "full"));
  EXPECT_THAT([&] { engine.submit(small_request(engine), std::move(sequence)); },
              ThrowsMessage<UserError>(HasSubstr("another's")));
  EXPECT_EQ(sequence.length(), 0);
}

TEST(Misuse, ASequenceWhoseEngineIsGoneIsAnErrorAndCanBeDestroyed) {
  auto engine = std::make_unique<Engine>(options_for(reference::test_model("llama")));
  Engine other(options_for(reference::test_model("llama")));
  const plan::Plan plan = make(*engine, "quest", budget("64"));
  Sequence sequence = engine->open(plan);
  sequence.prefill(random_tokens(200, engine->tokenizer().size()));
  sequence.decode(1);
  auto fork = std::make_unique<Sequence>(sequence.fork(plan));
  engine.reset();
  for (const auto& call : calls_of(sequence, plan)) {
    EXPECT_THAT(call, ThrowsMessage<UserError>(HasSubstr("the engine of this sequence is gone")));
  }
  EXPECT_THAT([&] { other.submit(small_request(other), std::move(sequence)); },
              ThrowsMessage<UserError>(HasSubstr("is gone")));
  fork.reset();
  sequence = other.open(plan);
  EXPECT_EQ(sequence.length(), 0);
}

}  // namespace
}  // namespace glimpse::engine
