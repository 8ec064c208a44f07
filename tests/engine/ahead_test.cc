// Requests on a device that queues passes (flying_backend.h): the next pass is launched before this one's tokens are
// known. Whatever ends, comes or is called meanwhile, every request gets what it gets from the CPU pass by pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "glimpse/base/error.h"
#include "glimpse/engine/service.h"
#include "tests/engine/ahead_support.h"

namespace glimpse::engine {
namespace {

using ::testing::HasSubstr;

TEST_F(Ahead, RequestsGetTheirTokens) {
  Engine engine(flying_options());
  std::vector<Request> requests{greedy(engine, 300, "tidal", 1, 40), greedy(engine, 90, "full", 2, 25),
                                greedy(engine, 200, "lychee-decode", 3, 33), greedy(engine, 250, "evosparse", 4, 12)};
  expect_wanted(engine, requests);
  EXPECT_GT(flying().behind, 20);
  EXPECT_LT(flying().behind, flying().launched);
  EXPECT_EQ(flying().abandoned, 0);
}

/// An answer's length is known, so no row is computed that nobody wants.
TEST_F(Ahead, NoPassIsLaunchedBehindTheLastToken) {
  Engine engine(flying_options());
  const RequestId id = engine.submit(greedy(engine, 50, "full", 1, 20));
  run_all(engine);
  EXPECT_EQ(engine.result(id).tokens.size(), 20U);
  EXPECT_EQ(flying().launched, 1 + 19);  // the prompt gives the first one
  EXPECT_EQ(flying().behind, 18);
}

TEST_F(Ahead, WhatTheHostNeedsBetweenPassesGoesPassByPass) {
  for (const std::string policy : {"streaming", "h2o", "quest", "shadowkv"}) {
    SCOPED_TRACE(policy);
    SetUp();
    Engine engine(flying_options());
    const Request request = greedy(engine, 200, policy, 1, 12);
    const RequestId id = engine.submit(request), other = engine.submit(greedy(engine, 60, "full", 2, 8));
    run_all(engine);
    expect_same(engine.result(id), want(request));
    EXPECT_EQ(engine.result(other).tokens.size(), 8U);
    EXPECT_EQ(flying().behind, 0);
  }
  SetUp();
  Engine engine(flying_options());
  Request all = greedy(engine, 60, "full", 1, 12), audited = all, corrected = all, watched = all, penalised = all,
          logprobs = all, drafted = greedy(engine, 100, "tidal", 2, 12);
  all.sampling.temperature = 1;
  all.sampling.top_k = 0;
  audited.audit_every = 3;
  corrected.correct_every = 4;
  watched.on_sets = [](const SetTrace&) {};
  penalised.sampling.presence_penalty = 0.5F;
  logprobs.logprobs = 2;
  drafted.lossless = true;
  drafted.draft_tokens = 3;
  drafted.logprobs = 0;
  const Request heated = lossless(greedy(engine, 100, "evosparse", 2, 12), 3);
  for (const Request& request : {all, audited, corrected, watched, penalised, logprobs, drafted, heated}) {
    EXPECT_EQ(answered(engine, request).tokens.size(), 12U);
  }
  EXPECT_EQ(flying().behind, 0);
}

/// The device draws what the next pass takes, and the host draws the same.
TEST_F(Ahead, SampledRequests) {
  Engine engine(flying_options());
  std::vector<Request> requests{
      sampled(greedy(engine, 100, "tidal", 1, 60), 1, 40), sampled(greedy(engine, 90, "full", 2, 50), 0.7F, 5),
      greedy(engine, 120, "lychee-decode", 3, 40), sampled(greedy(engine, 60, "kascade", 4, 40), 2, 128)};
  requests[0].sampling.top_p = 0.8F;
  requests[3].sampling.min_p = 0;
  requests[3].sampling.top_p = 1;
  expect_wanted(engine, requests);
  EXPECT_GT(flying().behind, 50);
  EXPECT_LT(flying().launched - flying().behind, 6);  // prompts, and what follows them: no draw was another
}

/// A sampled request beside one that drafts.
TEST_F(Ahead, SampledRequestsBesideDrafts) {
  Engine engine(flying_options());
  const std::vector<Request> requests{sampled(greedy(engine, 100, "tidal", 1, 60), 1, 40),
                                      lossless(greedy(engine, 90, "tidal", 2, 50), 4)};
  const RequestId one = engine.submit(requests[0]), two = engine.submit(requests[1]);
  run_all(engine);
  expect_same(engine.result(one), want(requests[0]));
  expect_same_drafts(engine.result(two), want(requests[1]));
  EXPECT_GT(flying().behind, 20);
}

/// Where the device's token is not the host's, the row that took it is taken back.
TEST_F(Ahead, TokensThatTheHostDrawsOtherwise) {
  for (const std::string policy : {"tidal", "evosparse", "lychee-cluster"}) {
    for (const std::int64_t right : {0, 1, 7, 8}) {
      SCOPED_TRACE(policy + " " + std::to_string(right));
      SetUp();
      Engine engine(flying_options());
      const Request first = sampled(greedy(engine, 100, policy, 1, 60), 1, 40),
                    second = sampled(greedy(engine, 90, "full", 2, 60), 1, 40);
      const RequestId one = engine.submit(first), two = engine.submit(second);
      step_until(engine, two, 5);
      flying().misdraw = right;
      run_all(engine);
      EXPECT_LT(flying().misdraw, 0);
      expect_same(engine.result(one), want(first));
      expect_same(engine.result(two), want(second));
    }
  }
}

/// Of a cycle's passes all but the first draft's are known before their last tokens.
TEST_F(Ahead, DraftsAndTheirVerification) {
  Engine engine(flying_options());
  const Request request = lossless(greedy(engine, 100, "tidal", 2, 30), 3);
  Request told = request;  // all logits: pass by pass
  told.logprobs = 0;
  const Result got = answered(engine, request);
  expect_same_drafts(got, want(request));
  const std::int64_t cycles = got.stats.lossless.verify_passes;
  EXPECT_GT(cycles, 5);
  EXPECT_EQ(flying().behind, got.stats.lossless.drafted);
  expect_same_drafts(answered(engine, told), got);
}

/// What drafts feed waits for their verification.
TEST_F(Ahead, DraftsThatFeedHeatWait) {
  Engine engine(flying_options());
  const Request request = lossless(greedy(engine, 300, "evosparse", 2, 30), 3);
  const Result got = answered(engine, request);
  expect_same_drafts(got, want(request));
  EXPECT_GT(got.stats.lossless.drafted, 10);
  EXPECT_EQ(flying().behind, 0);
}

TEST_F(Ahead, LosslessRequestsBesideOthers) {
  Engine engine(flying_options());
  const std::vector<Request> requests{
      lossless(greedy(engine, 300, "tidal", 1, 40), 2), lossless(greedy(engine, 90, "kascade", 2, 25), 5),
      greedy(engine, 200, "lychee-decode", 3, 33), lossless(greedy(engine, 250, "tidal", 4, 60), 15)};
  std::vector<RequestId> ids;
  for (const Request& each : requests) ids.push_back(engine.submit(each));
  run_all(engine);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    SCOPED_TRACE(i);
    if (i == 2) {
      expect_same(engine.result(ids[i]), want(requests[i]));
    } else {
      expect_same_drafts(engine.result(ids[i]), want(requests[i]));
    }
  }
  EXPECT_GT(flying().behind, 30);
  EXPECT_EQ(flying().abandoned, 0);
}

/// Dense steps where drafting rests, or where the answer is too short for drafts.
TEST_F(Ahead, DenseStepsOfLosslessRequests) {
  Engine engine(flying_options());
  Request request = lossless(greedy(engine, 200, "tidal", 1, 120), 0);
  request.plan = make(engine, "tidal", budget("8"));
  const Result got = answered(engine, request);
  EXPECT_EQ(got.tokens, want(request).tokens);
  EXPECT_GT(got.stats.lossless.dense_steps, 10);
  EXPECT_GT(flying().behind, got.stats.lossless.dense_steps / 2);
}

/// A draft that ends the text: the one behind it is taken back, or its verification is there already.
TEST_F(Ahead, ADraftThatEndsTheText) {
  Engine engine(flying_options());
  int ended = 0;
  for (std::uint32_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(seed);
    Request request = lossless(greedy(engine, 60, "tidal", seed, 200), 1 + static_cast<int>(seed) % 4);
    request.ignore_end = false;
    const Result got = answered(engine, request);
    expect_same_drafts(got, want(request));
    if (got.reason == FinishReason::end_of_text) ++ended;
  }
  EXPECT_GT(ended, 2);
}

/// What is called or cancelled while drafts and verifications are under way.
TEST_F(Ahead, CallsBetweenDrafts) {
  for (int steps = 8; steps < 16; ++steps) {
    SCOPED_TRACE(steps);
    SetUp();
    Engine engine(flying_options());
    const EngineStats before = engine.stats();
    const Request first = lossless(greedy(engine, 100, "tidal", 1, 50), 3), second = greedy(engine, 110, "full", 2, 50);
    Request kept = lossless(greedy(engine, 90, "tidal", 3, 50), 4);
    kept.keep = true;
    const RequestId one = engine.submit(first), two = engine.submit(second), three = engine.submit(kept);
    for (int i = 0; i < steps; ++i) ASSERT_TRUE(engine.step());
    {
      Sequence sequence = engine.open(make(engine, "full"));
      sequence.prefill(random_tokens(30, engine.tokenizer().size()));
    }
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine.step());
    engine.cancel(three);
    run_all(engine);
    expect_same_drafts(engine.result(one), want(first));
    expect_same(engine.result(two), want(second));
    const Result& left = engine.result(three);
    EXPECT_EQ(left.reason, FinishReason::cancelled);
    const Result whole = want(kept);
    EXPECT_TRUE(std::equal(left.tokens.begin(), left.tokens.end(), whole.tokens.begin()));
    for (const RequestId id : {one, two, three}) engine.release(id);
    EXPECT_EQ(engine.stats().pages_free, before.pages_free);
  }
}

/// A request that is cancelled while drafts or their verification are under way leaves what it has said.
TEST_F(Ahead, WhatIsKeptOfDraftsThatAreCancelled) {
  for (int steps = 4; steps < 12; ++steps) {
    SCOPED_TRACE(steps);
    Engine engine(flying_options()), plain(options_for(reference::test_model("llama")));
    Request kept = lossless(greedy(engine, 90, "tidal", 3, 50), 3);
    kept.keep = true;
    const RequestId id = engine.submit(kept);
    for (int i = 0; i < steps; ++i) ASSERT_TRUE(engine.step());
    engine.cancel(id);
    auto [there, expected] = kept_by_both(engine, id, plain, kept);
    const std::vector<Token> more = random_tokens(5, engine.tokenizer().size(), 11);
    EXPECT_TRUE(same_bits(decoded(there, more), decoded(expected, more)));
  }
}

/// A device that fails between drafts: the cycle begins anew.
TEST_F(Ahead, ADeviceThatFailsBetweenDrafts) {
  for (std::int64_t passes = 0; passes < 6; ++passes) {
    SCOPED_TRACE(passes);
    SetUp();
    Engine engine(flying_options());
    const Request request = lossless(greedy(engine, 100, "tidal", 1, 50), 3);
    const RequestId id = engine.submit(request);
    step_until(engine, id, 8);
    flying().fail_collect = passes;
    EXPECT_THROW(while (engine.step()){}, InternalError);
    run_all(engine);
    EXPECT_EQ(engine.result(id).tokens, want(request).tokens);
    EXPECT_EQ(engine.result(id).reason, FinishReason::length);
  }
}

TEST_F(Ahead, ADraftThatIsNotFiniteEndsItsRequestAlone) {
  for (std::int64_t passes = 0; passes < 5; ++passes) {
    SCOPED_TRACE(passes);
    SetUp();
    Engine engine(flying_options());
    const Request first = lossless(greedy(engine, 100, "tidal", 1, 50), 3), second = greedy(engine, 110, "full", 2, 50);
    const RequestId fails = engine.submit(first), goes_on = engine.submit(second);
    step_until(engine, fails, 8);
    flying().spoil = passes;
    run_all(engine);
    EXPECT_EQ(engine.result(fails).reason, FinishReason::failed);
    EXPECT_THAT(engine.result(fails).error, HasSubstr("are not finite"));
    expect_same(engine.result(goes_on), want(second));
  }
}

/// Nobody knows of an end before it is there: its row in the next pass is taken back.
TEST_F(Ahead, AnAnswerThatEndsTakesItsRowBack) {
  Engine engine(flying_options());
  Request first = greedy(engine, 100, "tidal", 1, 30), second = greedy(engine, 120, "full", 2, 30);
  const Result whole = want(first);
  std::string text;
  for (std::size_t i = 10; i < 12; ++i) text += engine.tokenizer().piece(whole.tokens[i], false);
  first.stop = {text};
  first.keep = true;
  const Result expected = want(first);
  ASSERT_EQ(expected.reason, FinishReason::stop);
  const RequestId stopped = engine.submit(first), goes_on = engine.submit(second);
  run_all(engine);
  expect_same(engine.result(stopped), expected);
  expect_same(engine.result(goes_on), want(second));
  EXPECT_GT(flying().behind, 20);

  // The sequence that was kept is as long as the other one, and goes on with its bits.
  std::optional<Sequence> kept = engine.take(stopped);
  ASSERT_TRUE(kept);
  Engine plain(options_for(reference::test_model("llama")));
  const RequestId same = plain.submit(first);
  run_all(plain);
  std::optional<Sequence> there = plain.take(same);
  ASSERT_TRUE(there);
  EXPECT_EQ(kept->length(), there->length());
  const std::vector<Token> more = random_tokens(20, engine.tokenizer().size(), 11);
  EXPECT_TRUE(same_bits(decoded(*kept, more), decoded(*there, more)));
}

TEST_F(Ahead, CallsBetweenStepsAndFromCallbacks) {
  Engine engine(flying_options());
  const EngineStats before = engine.stats();
  const std::vector<Token> tokens = random_tokens(80, engine.tokenizer().size(), 5);
  std::vector<float> expected;
  {
    Engine plain(options_for(reference::test_model("llama")));
    Sequence sequence = plain.open(make(plain, "full"));
    sequence.prefill(std::span(tokens).first(60));
    expected = decoded(sequence, std::span(tokens).subspan(60));
  }
  Request goes_on = greedy(engine, 100, "tidal", 1, 50), ended = greedy(engine, 110, "full", 2, 50),
          late = greedy(engine, 70, "lychee-decode", 3, 20);
  const Result whole = want(ended);
  RequestId victim = 0;
  std::vector<Token> seen;
  goes_on.on_token = [&](Token token, std::string_view) {
    seen.push_back(token);
    if (seen.size() == 15) engine.cancel(victim);
  };
  const RequestId going = engine.submit(goes_on);
  victim = engine.submit(ended);
  while (seen.size() < 10) ASSERT_TRUE(engine.step());
  EXPECT_GT(flying().behind, 5);
  // A pass by hand, while one of the requests' is in flight.
  Sequence sequence = engine.open(make(engine, "full"));
  sequence.prefill(std::span(tokens).first(60));
  EXPECT_TRUE(same_bits(decoded(sequence, std::span(tokens).subspan(60)), expected));
  while (seen.size() < 20) ASSERT_TRUE(engine.step());
  EXPECT_EQ(engine.result(victim).reason, FinishReason::cancelled);
  EXPECT_TRUE(
      std::equal(engine.result(victim).tokens.begin(), engine.result(victim).tokens.end(), whole.tokens.begin()));
  EXPECT_GE(engine.result(victim).tokens.size(), 13U);
  const RequestId added = engine.submit(late), dropped = engine.submit(ended);
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(engine.step());
  engine.release(dropped);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine.step());
  const RequestId soon = engine.submit(ended);
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(engine.step());
  engine.cancel_soon(soon);
  run_all(engine);
  EXPECT_EQ(engine.result(soon).reason, FinishReason::cancelled);
  goes_on.on_token = nullptr;
  expect_same(engine.result(going), want(goes_on));
  expect_same(engine.result(added), want(late));
  for (const RequestId id : {going, victim, added, soon}) engine.release(id);
  sequence = engine.open(make(engine, "full"));
  EXPECT_EQ(engine.stats().pages_free, before.pages_free);
}

/// A cache that is too small for all preempts, and nobody notices.
TEST_F(Ahead, AFullCache) {
  EngineOptions options = small_cache(768);
  options.prefill_chunk = 64;
  Engine engine(options);
  std::vector<Request> requests;
  std::vector<RequestId> ids;
  for (std::uint32_t seed = 1; seed <= 4; ++seed) requests.push_back(greedy(engine, 150, "tidal", seed, 130));
  for (const Request& request : requests) ids.push_back(engine.submit(request));
  run_all(engine);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(engine.result(ids[i]).tokens, want(requests[i]).tokens) << i;
    EXPECT_EQ(engine.result(ids[i]).reason, FinishReason::length) << engine.result(ids[i]).error;
  }
  EXPECT_GT(engine.stats().preemptions, 0);
  EXPECT_GT(flying().behind, 0);
}

TEST_F(Ahead, ARowThatIsNotFiniteEndsItsRequestAlone) {
  Engine engine(flying_options());
  const auto [first, second, fails, goes_on] = two_under_way(engine);
  flying().spoil = 1;
  run_all(engine);
  EXPECT_EQ(engine.result(fails).reason, FinishReason::failed);
  EXPECT_THAT(engine.result(fails).error, HasSubstr("are not finite"));
  EXPECT_EQ(engine.result(fails).tokens.size(), 11U);
  expect_same(engine.result(goes_on), want(second));
  engine.release(fails);
  EXPECT_EQ(answered(engine, first).tokens, want(first).tokens);
}

/// The same where another call waits for the pass, and nothing is behind it.
TEST_F(Ahead, ARowThatIsNotFiniteBehindAnotherCall) {
  Engine engine(flying_options());
  const auto [first, second, fails, goes_on] = two_under_way(engine);
  flying().spoil = 0;
  Sequence sequence = engine.open(make(engine, "full"));
  sequence.prefill(random_tokens(20, engine.tokenizer().size()));
  run_all(engine);
  EXPECT_EQ(engine.result(fails).reason, FinishReason::failed);
  EXPECT_EQ(engine.result(fails).tokens.size(), 10U);
  expect_same(engine.result(goes_on), want(second));
}

TEST_F(Ahead, ACallBetweenStepsMayFail) {
  const EngineOptions options = small_cache(1024);
  Engine engine(options);
  const Request request = greedy(engine, 100, "tidal", 1, 60);
  const RequestId id = engine.submit(request);
  while (engine.result(id).tokens.size() < 10) ASSERT_TRUE(engine.step());
  const std::int64_t behind = flying().behind;
  Sequence first = engine.open(make(engine, "full")), second = engine.open(make(engine, "full"));
  first.prefill(random_tokens(300, engine.tokenizer().size()));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine.step());
  EXPECT_THROW(second.prefill(random_tokens(900, engine.tokenizer().size())), UserError);  // the cache is full
  run_all(engine);
  expect_same(engine.result(id), want(request));
  EXPECT_GT(behind, 5);
}

TEST_F(Ahead, ADeviceThatFailsEndsTheStepAndLosesNothing) {
  Engine engine(flying_options());
  const auto [first, second, one, two] = two_under_way(engine);
  flying().fail_collect = 0;
  EXPECT_THROW(engine.step(), InternalError);
  EXPECT_EQ(flying().abandoned, 2);
  run_all(engine);  // plans that keep nothing: the rows are taken back, and made again
  expect_same(engine.result(one), want(first));
  expect_same(engine.result(two), want(second));

  // The same where another call waits for the pass: the next step says so.
  const RequestId again = engine.submit(first);
  step_until(engine, again, 10);
  flying().fail_collect = 0;
  Sequence sequence = engine.open(make(engine, "full"));
  sequence.prefill(random_tokens(20, engine.tokenizer().size()));
  EXPECT_THROW(engine.step(), InternalError);
  run_all(engine);
  EXPECT_EQ(engine.result(again).tokens, want(first).tokens);
}

TEST_F(Ahead, KeptPrefixesHaveWhatWasAnswered) {
  EngineOptions options = flying_options(), plain = options_for(reference::test_model("llama"));
  options.prefix_bytes = plain.prefix_bytes = -1;
  Engine engine(options), there(plain);
  Request first = greedy(engine, 100, "full", 1, 30);
  first.reuse = Reuse::any;
  const Result one = answered(engine, first), same = answered(there, first);
  ASSERT_EQ(one.tokens, same.tokens);
  Request next = first;
  next.prompt.insert(next.prompt.end(), one.tokens.begin(), one.tokens.end());
  next.prompt.push_back(3);
  const Result got = answered(engine, next), expected = answered(there, next);
  EXPECT_EQ(got.stats.reused_tokens, expected.stats.reused_tokens);
  EXPECT_GT(got.stats.reused_tokens, 100);
  EXPECT_EQ(got.tokens, expected.tokens);
}

/// The engine may go while a pass is in flight.
TEST_F(Ahead, TheEngineMayGo) {
  Engine engine(flying_options());
  const RequestId id = engine.submit(greedy(engine, 60, "full", 1, 30));
  while (engine.result(id).tokens.size() < 5) ASSERT_TRUE(engine.step());
  EXPECT_GT(flying().behind, 0);
}

TEST_F(Ahead, StreamsOfAService) {
  Engine engine(flying_options());
  std::vector<Request> requests{greedy(engine, 300, "tidal", 1, 60), greedy(engine, 90, "full", 2, 80),
                                greedy(engine, 200, "kascade", 3, 70), greedy(engine, 40, "full", 4, 1000)};
  std::vector<Result> results(requests.size());
  {
    Service service(engine);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      threads.emplace_back([&, i] {
        Stream stream = service.submit(requests[i]);
        std::size_t tokens = 0;
        while (std::optional<StreamEvent> event = stream.next()) {
          tokens += event->tokens.size();
          if (i == 3 && tokens >= 20) stream.cancel();
          if (event->kind == StreamEvent::Kind::finished) results[i] = event->result;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(results[i].tokens, want(requests[i]).tokens) << i;
  EXPECT_EQ(results[3].reason, FinishReason::cancelled);
  requests[3].max_tokens = static_cast<std::int64_t>(results[3].tokens.size());
  EXPECT_EQ(results[3].tokens, want(requests[3]).tokens);
  EXPECT_GT(flying().behind, 0);
}

}  // namespace
}  // namespace glimpse::engine
