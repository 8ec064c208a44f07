// Requests that do not fit together: who waits, who is preempted, and that nobody can tell from the answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/kernels/views.h"
#include "tests/engine/preempted_support.h"

namespace glimpse::engine {
namespace {

using ::testing::HasSubstr;

/// Who shares a pass changes the last digits of sums, and seldom which of two pages with near bounds is read for a
/// step. So the logarithms are those of the one that is alone, but for a few steps, until tokens part.
void expect_as_alone(const Result& result, const Request& request, const EngineOptions& options) {
  constexpr double kRounding = 0.01;
  Engine engine(options);
  const Result own = answered(engine, request);
  ASSERT_EQ(result.tokens.size(), own.tokens.size());
  const auto apart = std::mismatch(result.tokens.begin(), result.tokens.end(), own.tokens.begin()).first;
  const auto same = static_cast<std::size_t>(apart - result.tokens.begin());
  EXPECT_GE(same, 32U);
  std::size_t far = 0;
  for (std::size_t i = 0; i < same; ++i) {
    const double by = result.logprobs[i].logprob - own.logprobs[i].logprob;
    far += std::abs(by) > kRounding ? 1 : 0;
  }
  EXPECT_LE(far * 32, same) << "steps that are another's, of " << same;
}

TEST(HalfTheCache, AllFinishAsAloneByWaitingAndPreemption) {
  const std::vector<std::pair<Kind, std::size_t>> wanted{
      {{"full", "full"}, 300},           {{"quest", "quest"}, 260},          {{"streaming", "streaming"}, 350},
      {{"evosparse", "evosparse"}, 200}, {{"lossless", "tidal", true}, 280}, {{"again", "quest"}, 150}};
  const EngineOptions options = with_room_for(1024);  // of about 2,400 tokens
  Engine engine(options);
  std::vector<Request> requests;
  std::vector<RequestId> ids;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    requests.push_back(request_of(engine, wanted[i].first, wanted[i].second, static_cast<std::uint32_t>(i + 1)));
    requests.back().max_tokens = 150;
    requests.back().logprobs = 2;
    ids.push_back(engine.submit(requests.back()));
  }
  EXPECT_EQ(engine.stats().waiting, 6);
  bool waited = false;
  while (engine.step()) {
    const EngineStats stats = engine.stats();
    EXPECT_GT(stats.running + (engine.finished(ids.back()) ? 1 : 0), 0);
    waited = waited || stats.waiting > 0;
  }
  EXPECT_TRUE(waited);
  EXPECT_GT(engine.stats().preemptions, 0);
  EXPECT_EQ(engine.stats().pages_free, engine.stats().pages_total);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Result& result = engine.result(ids[i]);
    EXPECT_EQ(result.reason, FinishReason::length) << wanted[i].first.name << ": " << result.error;
    SCOPED_TRACE(wanted[i].first.name);
    expect_as_alone(result, requests[i], options);
    EXPECT_GE(result.stats.first_token_s, result.stats.first_chunk_s);
    EXPECT_GT(result.stats.last_token_s, result.stats.first_token_s);
  }
  EXPECT_EQ(engine.result(ids.front()).stats.preemptions, 0) << "the oldest is never preempted";
}

class Preempted : public testing::TestWithParam<Kind> {};

// Both begin from saved sessions, so that every pass has few rows and the bits of one row.
TEST_P(Preempted, GoesOnBitForBit) {
  const Folder folder;
  const EngineOptions options = with_room_for(1024);
  const auto saved = [&](Request request, const std::string& name) {
    Engine engine(options);
    request.session = folder.file(name);
    request.max_tokens = 0;
    const RequestId id = engine.submit(request);
    run_all(engine);
    EXPECT_GT(engine.result(id).stats.session->saved_tokens, 0);
  };
  Engine first(options), second(options);
  Request old = request_of(first, {"full", "full"}, 700, 1);
  Request young = request_of(first, GetParam(), 200, 2);
  saved(old, "old");
  saved(young, "young");
  old.session = folder.file("old");
  old.max_tokens = 320;
  young.session = folder.file("young");
  young.max_tokens = 340;
  young.keep = true;
  const RequestId older = first.submit(old);
  const RequestId preempted = first.submit(young);
  run_all(first);
  const RequestId calm = second.submit(young);
  run_all(second);

  const Result& result = first.result(preempted);
  EXPECT_EQ(first.result(older).reason, FinishReason::length);
  EXPECT_EQ(first.result(older).stats.preemptions, 0);
  ASSERT_EQ(result.reason, FinishReason::length) << result.error;
  EXPECT_GT(result.stats.preemptions, 0);
  EXPECT_GT(result.stats.waited_s, 0);
  EXPECT_EQ(result.tokens, second.result(calm).tokens);
  std::optional<Sequence> one = first.take(preempted), other = second.take(calm);
  ASSERT_TRUE(one && other);
  ASSERT_EQ(one->length(), other->length());
  const std::vector<Token> more = random_tokens(3, first.tokenizer().size(), 9);
  EXPECT_TRUE(same_bits(decoded(*one, more), decoded(*other, more)));
}

INSTANTIATE_TEST_SUITE_P(Methods, Preempted,
                         testing::Values(Kind{"full", "full"}, Kind{"tidal", "tidal"}, Kind{"quest", "quest"},
                                         Kind{"h2o", "h2o"}, Kind{"evosparse", "evosparse"},
                                         Kind{"streaming", "streaming"}, Kind{"lychee", "lychee-cluster"},
                                         Kind{"lossless", "quest", true}, Kind{"lossless_evosparse", "evosparse", true},
                                         Kind{"corrected", "quest", false, 24},
                                         Kind{"tiered", "arkvale", false, 0, {{"resident", "64"}}}),
                         [](const auto& row) { return row.param.name; });

/// A sequence of the caller's that takes all pages that are free.
Sequence taking_the_rest(Engine& engine) {
  Sequence sequence = engine.open(make(engine, "full"));
  const std::int64_t heads = std::int64_t{engine.shape().layers} * engine.shape().kv_heads;
  const std::int64_t tokens = engine.stats().pages_free / heads * kernels::kPageTokens;
  sequence.prefill(random_tokens(static_cast<std::size_t>(tokens), engine.tokenizer().size()));
  return sequence;
}

TEST(NoFolder, APromptBeginsAgainAndAnAnswerFails) {
  EngineOptions options = with_room_for(1024);
  options.tier_folder = "/nowhere/at/all";
  for (const bool answers : {false, true}) {
    Engine engine(options);
    Request old = request_of(engine, {"full", "full"}, 300, 1);
    old.max_tokens = 350;
    Request young = request_of(engine, {"quest", "quest"}, 300, 2);
    young.max_tokens = 20;
    const RequestId older = engine.submit(old);
    const RequestId id = engine.submit(young);
    while (answers ? engine.result(id).tokens.empty() : engine.result(id).stats.prefilled_tokens == 0) engine.step();
    {
      const Sequence hog = taking_the_rest(engine);
      while (engine.stats().preemptions == 0) ASSERT_TRUE(engine.step());
    }
    run_all(engine);
    EXPECT_EQ(engine.result(older).reason, FinishReason::length);
    const Result& result = engine.result(id);
    EXPECT_EQ(result.stats.preemptions, 1);
    if (answers) {
      EXPECT_EQ(result.reason, FinishReason::failed);
      EXPECT_THAT(result.error, testing::AllOf(HasSubstr("cannot wait elsewhere"), HasSubstr("'/nowhere/at/all'")));
    } else {
      EXPECT_EQ(result.reason, FinishReason::length) << result.error;
      EXPECT_EQ(result.stats.prefilled_tokens, 300);
      EXPECT_EQ(result.tokens, alone(young, options));
    }
  }
}

TEST(Full, EveryStepSaysSoWhileSequencesLeaveNoRoomForOne) {
  Engine engine(with_room_for(1024));
  Request request = request_of(engine, {"quest", "quest"}, 300, 1);
  request.max_tokens = 400;
  const RequestId id = engine.submit(request);
  engine.step();
  {
    const Sequence hog = taking_the_rest(engine);
    EXPECT_THAT([&] { run_all(engine); }, testing::ThrowsMessage<UserError>(HasSubstr("the KV cache is full")));
    EXPECT_THROW(engine.step(), UserError);
    EXPECT_FALSE(engine.finished(id));
  }
  run_all(engine);
  EXPECT_EQ(engine.result(id).tokens, alone(request, with_room_for(1024)));
}

TEST(Shared, PagesOfPreemptedRequestsGoWhenTheOldestNeedsThem) {
  const EngineOptions options = with_room_for(1024);
  Engine engine(options);
  Request old = request_of(engine, {"full", "full"}, 300, 1);
  old.max_tokens = 500;
  Request young = request_of(engine, {"quest", "quest"}, 300, 2);
  young.max_tokens = 300;
  const RequestId older = engine.submit(old);
  Sequence document = engine.open(young.plan);
  document.prefill(std::span(young.prompt).first(256));
  Sequence copy = document.fork(young.plan);
  const RequestId one = engine.submit(young, std::move(document));
  const RequestId other = engine.submit(young, std::move(copy));
  run_all(engine);
  EXPECT_EQ(engine.result(older).reason, FinishReason::length);
  EXPECT_EQ(engine.result(older).stats.preemptions, 0);
  const std::vector<Token> expected = alone(young, options);
  for (const RequestId id : {one, other}) {
    EXPECT_EQ(engine.result(id).reason, FinishReason::length) << engine.result(id).error;
    EXPECT_EQ(engine.result(id).stats.reused_tokens, 256);
    EXPECT_GT(engine.result(id).stats.preemptions, 0);
    EXPECT_EQ(engine.result(id).tokens, expected);
  }
}

TEST(Waiting, EndsOldestFirstAndCounts) {
  Engine engine(with_room_for(512));
  std::vector<RequestId> ids;
  for (std::uint32_t i = 0; i < 3; ++i) {
    ids.push_back(engine.submit(full_request(engine, 400, 4, i)));
  }
  engine.step();
  EXPECT_EQ(engine.stats().running, 1);
  EXPECT_EQ(engine.stats().waiting, 2);
  while (engine.step()) {
    for (std::size_t i = 1; i < ids.size(); ++i) {
      EXPECT_GE(engine.finished(ids[i - 1]), engine.finished(ids[i]));
    }
  }
  EXPECT_EQ(engine.stats().waiting, 0);
  EXPECT_EQ(engine.stats().preemptions, 0);
  EXPECT_GT(engine.result(ids[2]).stats.waited_s, engine.result(ids[1]).stats.waited_s);
}

TEST(Waiting, ASessionThatDoesNotFitYetIsReadLater) {
  const Folder folder;
  const EngineOptions options = with_room_for(512);
  Engine engine(options);
  Request request = request_of(engine, {"quest", "quest"}, 300, 1);
  request.session = folder.file("session");
  request.max_tokens = 8;
  const RequestId writes = engine.submit(request);
  run_all(engine);
  Request other = request_of(engine, {"full", "full"}, 400, 2);
  other.max_tokens = 8;
  const RequestId before = engine.submit(other);
  engine.step();
  const RequestId later = engine.submit(request);
  EXPECT_EQ(engine.stats().waiting, 1);
  run_all(engine);
  EXPECT_EQ(engine.result(before).reason, FinishReason::length);
  EXPECT_EQ(engine.result(later).stats.reused_tokens, 300);
  EXPECT_EQ(engine.result(later).stats.preemptions, 0);
  EXPECT_EQ(engine.result(later).tokens, engine.result(writes).tokens);
}

}  // namespace
}  // namespace glimpse::engine
