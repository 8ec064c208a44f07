// Kept prefixes give way: to their bound, and to whoever needs their pages.
#include <gtest/gtest.h>

#include <utility>

#include "glimpse/kernels/views.h"
#include "tests/engine/preempted_support.h"
#include "tests/engine/prefix_support.h"

namespace glimpse::engine {
namespace {

EngineOptions kept_beside(std::int64_t tokens, std::int64_t bytes = -1) {
  EngineOptions options = with_room_for(tokens);
  options.prefix_bytes = bytes;
  return options;
}

TEST(PrefixPressure, NobodyWaitsOrIsPreemptedForWhatIsKept) {
  Engine engine(kept_beside(1024));
  for (std::uint32_t seed = 1; seed <= 4; ++seed) answered(engine, full_request(engine, 200, 20, seed));
  const EngineStats before = engine.stats();
  EXPECT_GT(before.pages_kept, before.pages_total / 2);
  expect_only_kept(engine);
  const RequestId first = engine.submit(full_request(engine, 500, 100, 11));
  const RequestId second = engine.submit(full_request(engine, 300, 60, 12));
  engine.step();
  EXPECT_EQ(engine.stats().running, 2);
  EXPECT_EQ(engine.stats().waiting, 0);
  run_all(engine);
  EXPECT_EQ(engine.stats().preemptions, 0);
  for (const auto& [id, request] :
       {std::pair(first, full_request(engine, 500, 100, 11)), std::pair(second, full_request(engine, 300, 60, 12))}) {
    EXPECT_EQ(engine.result(id).reason, FinishReason::length) << engine.result(id).error;
    EXPECT_EQ(engine.result(id).tokens, alone(request, with_room_for(1024)));
    engine.release(id);
  }
  expect_only_kept(engine);
}

TEST(PrefixPressure, ARequestMayFillTheCacheAlone) {
  Engine engine(kept_beside(512));
  answered(engine, full_request(engine, 300, 20, 1));
  const Request request = full_request(engine, 400, -1, 2);
  const Result result = answered(engine, request);
  EXPECT_EQ(result.reason, FinishReason::context_full) << result.error;
  EXPECT_EQ(result.tokens.size(), 512U - 400U + 1U);
}

TEST(PrefixPressure, SequencesByHandTakeTheirPages) {
  Engine engine(kept_beside(512));
  answered(engine, full_request(engine, 400, 20, 1));
  EXPECT_GT(engine.stats().prefixes, 0);
  Sequence sequence = engine.open(make(engine, "full"));
  sequence.prefill(random_tokens(500, engine.tokenizer().size(), 2));
  EXPECT_EQ(engine.stats().prefixes, 0);
}

TEST(PrefixPressure, AMixThatDoesNotFitAnswersAsAlone) {
  const std::vector<std::pair<Kind, std::size_t>> wanted{{{"full", "full"}, 300},
                                                         {{"quest", "quest"}, 260},
                                                         {{"again", "quest"}, 260},
                                                         {{"streaming", "streaming"}, 350},
                                                         {{"arkvale", "arkvale"}, 200},
                                                         {{"lossless", "tidal", true}, 280},
                                                         {{"corrected", "tidal", false, 6}, 250}};
  Engine engine(kept_beside(1024));
  std::vector<Request> requests;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    requests.push_back(request_of(engine, wanted[i].first, wanted[i].second, static_cast<std::uint32_t>(i / 2)));
    requests.back().max_tokens = 60;
    requests.back().reuse = Reuse::exact;
  }
  for (int round = 0; round < 2; ++round) {
    std::vector<RequestId> ids;
    for (const Request& request : requests) ids.push_back(engine.submit(request));
    run_all(engine);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Result& result = engine.result(ids[i]);
      EXPECT_EQ(result.reason, FinishReason::length) << wanted[i].first.name << ": " << result.error;
      EXPECT_EQ(result.tokens, alone(requests[i], with_room_for(1024))) << wanted[i].first.name << " " << round;
      engine.release(ids[i]);
    }
    expect_only_kept(engine);
  }
}

TEST(PrefixBound, TheOneUsedLongestAgoGoesFirst) {
  std::int64_t one = 0;
  const auto ask = [](Engine& engine, std::uint32_t seed) {
    Request request = full_request(engine, 256, 1, seed);
    request.max_tokens = 1;
    return answered(engine, request).stats.reused_tokens;
  };
  {
    Engine engine(kept_beside(4096));
    ask(engine, 1);
    one = engine.stats().pages_kept;
    EXPECT_GT(one, 0);
  }
  const EngineOptions plain = with_room_for(4096);
  std::int64_t page_bytes = 0;
  {
    const Engine engine(plain);
    page_bytes = static_cast<std::int64_t>(engine.row_pair_bytes()) * kernels::kPageTokens;
  }
  Engine engine(kept_beside(4096, one * page_bytes * 7 / 2));  // three, and what lies beside their pages
  for (const std::uint32_t seed : {1, 2, 3}) EXPECT_EQ(ask(engine, seed), 0);
  EXPECT_EQ(ask(engine, 1), 256);
  EXPECT_EQ(ask(engine, 4), 0);  // in place of 2
  EXPECT_EQ(ask(engine, 3), 256);
  EXPECT_EQ(ask(engine, 1), 256);
  EXPECT_EQ(ask(engine, 2), 0);
  EXPECT_LE(engine.stats().pages_kept, 3 * one);
  Engine none(kept_beside(4096, 1));
  EXPECT_EQ(ask(none, 1), 0);
  EXPECT_EQ(none.stats().prefixes, 0);
  EXPECT_EQ(none.stats().pages_free, none.stats().pages_total);
}

}  // namespace
}  // namespace glimpse::engine
