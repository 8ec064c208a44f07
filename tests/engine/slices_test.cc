// Chunks of prompts that run in slices of layers while others decode: the same bits, for both, as in passes of their
// own; and what becomes of them when a request is cancelled, fails or has no room in the middle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "glimpse/base/error.h"
#include "glimpse/engine/service.h"
#include "tests/engine/preempted_support.h"

namespace glimpse::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// A slice ends behind its first layer.
constexpr double kALayer = 1e-9;

EngineOptions sliced(double seconds, const char* model = "llama") {
  EngineOptions options = options_for(reference::test_model(model), KvType::bf16);
  options.prefill_chunk = 128;
  options.slice_seconds = seconds;
  return options;
}

/// One that decodes while the others' prompts come; 8 tokens of prompt, so that it is in soon.
Request talking(const Engine& engine, const Kind& kind = {"full", "full"}) {
  Request request = request_of(engine, kind, 8, 77);
  request.max_tokens = 60;
  request.logprobs = 3;
  return request;
}

Result calm(const Request& request, const EngineOptions& options) {
  Engine engine(options);
  const RequestId id = engine.submit(request);
  run_all(engine);
  return engine.result(id);
}

void expect_same(const Result& got, const Result& wanted) {
  EXPECT_EQ(got.reason, wanted.reason) << got.error;
  EXPECT_EQ(got.tokens, wanted.tokens);
  for (const auto list : {&Result::logprobs, &Result::prompt_logprobs}) {
    const std::vector<text::TokenLogprobs>&a = got.*list, &b = wanted.*list;
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(a[i].logprob, b[i].logprob) << i;
      ASSERT_EQ(a[i].top.size(), b[i].top.size());
      for (std::size_t j = 0; j < a[i].top.size(); ++j) ASSERT_EQ(a[i].top[j].logprob, b[i].top[j].logprob) << i;
    }
  }
}

class Slices : public testing::TestWithParam<Kind> {};

TEST_P(Slices, HaveTheBitsOfWholeChunksAndSoHaveTheOthers) {
  const EngineOptions whole = sliced(0);
  Request prompt;
  {
    Engine engine(whole);
    prompt = request_of(engine, GetParam(), 300, 5);
    prompt.max_tokens = 12;
    prompt.logprobs = 5;
    prompt.prompt_logprobs = 2;
    if (prompt.lossless) prompt.draft_tokens = 2;
  }
  const Result wanted = calm(prompt, whole);
  constexpr int kChunks = 3, kLayers = 4;
  for (const double seconds : {kALayer, 5e-4, 2e-3, 1000.0}) {
    SCOPED_TRACE(seconds);
    Engine engine(sliced(seconds));
    const RequestId talks = engine.submit(talking(engine));
    while (engine.result(talks).tokens.empty()) engine.step();
    const RequestId id = engine.submit(prompt);
    int steps = 0;
    for (; engine.result(id).tokens.empty(); ++steps) {
      const std::size_t said = engine.result(talks).tokens.size();
      ASSERT_TRUE(engine.step());
      EXPECT_EQ(engine.result(talks).tokens.size(), said + 1) << "nobody waits for a chunk";
    }
    EXPECT_GE(steps, seconds == kALayer ? kChunks * kLayers : kChunks);
    EXPECT_LE(steps, seconds == 1000 ? kChunks : kChunks * kLayers);
    run_all(engine);
    expect_same(engine.result(id), wanted);
    expect_same(engine.result(talks), calm(talking(engine), whole));
    EXPECT_EQ(engine.stats().pages_free, engine.stats().pages_total);
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, Slices,
                         testing::Values(Kind{"full", "full"}, Kind{"tidal", "tidal"}, Kind{"quest", "quest"},
                                         Kind{"h2o", "h2o"}, Kind{"tova", "tova"}, Kind{"streaming", "streaming"},
                                         Kind{"evosparse", "evosparse"}, Kind{"lychee", "lychee-cluster"},
                                         Kind{"clusterkv", "clusterkv"}, Kind{"shadowkv", "shadowkv"},
                                         Kind{"arkvale", "arkvale", false, 0, {{"resident", "64"}}},
                                         Kind{"kascade", "kascade"}, Kind{"lossless", "tidal", true},
                                         Kind{"corrected", "tidal", false, 5}),
                         [](const auto& row) { return row.param.name; });

TEST(SlicedChunks, OfSeveralPromptsTakeTurnsBesideSeveralMethods) {
  Engine engine(sliced(kALayer));
  std::vector<Request> requests;
  for (const char* policy : {"full", "quest", "tidal"}) {
    requests.push_back(request_of(engine, {policy, policy}, 100 + 150 * requests.size(), 3));
    requests.back().max_tokens = 30;
  }
  std::vector<RequestId> ids;
  for (const Request& request : requests) {
    ids.push_back(engine.submit(request));
    for (int i = 0; i < 3; ++i) engine.step();
  }
  run_all(engine);
  for (std::size_t i = 0; i < ids.size(); ++i) expect_same(engine.result(ids[i]), calm(requests[i], sliced(0)));
}

enum class How : std::uint8_t { cancel, soon, release };

TEST(SlicedChunks, AreCancelledBetweenTwoSlices) {
  for (const char* policy : {"full", "h2o"}) {  // one that is taken back, and one that breaks its sequence
    for (const How how : {How::cancel, How::soon, How::release}) {
      for (const bool keep : {false, true}) {
        Engine engine(sliced(kALayer));
        const RequestId talks = engine.submit(talking(engine));
        while (engine.result(talks).tokens.empty()) engine.step();
        Request prompt = request_of(engine, {policy, policy}, 300, 5);
        prompt.keep = keep;
        const RequestId id = engine.submit(prompt);
        for (int i = 0; i < 6; ++i) engine.step();  // in the second chunk's second layer
        EXPECT_EQ(engine.result(id).stats.prefilled_tokens, 128);
        if (how == How::soon) {
          engine.cancel_soon(id);
          engine.step();
        }
        if (how == How::cancel) engine.cancel(id);
        if (how != How::release) {
          ASSERT_TRUE(engine.finished(id));
          EXPECT_EQ(engine.result(id).reason, FinishReason::cancelled);
          const std::optional<Sequence> kept = engine.take(id);
          EXPECT_EQ(kept.has_value(), keep);
          if (kept) {
            EXPECT_EQ(kept->length() % 128, 0);
          }
        }
        engine.release(id);
        const RequestId again = engine.submit(prompt);
        for (int i = 0; i < 5; ++i) engine.step();
        engine.release(again);
        run_all(engine);
        expect_same(engine.result(talks), calm(talking(engine), sliced(0)));
        EXPECT_EQ(engine.stats().pages_free, engine.stats().pages_total);
      }
    }
  }
}

TEST(SlicedChunks, ACallbackOfAnotherMayCancelThem) {
  Engine engine(sliced(kALayer));
  Request other = talking(engine);
  RequestId id = 0;
  int said = 0;
  other.on_token = [&](Token, std::string_view) {
    if (++said == 8) engine.cancel(id);
  };
  const RequestId talks = engine.submit(other);
  engine.step();
  id = engine.submit(request_of(engine, {"full", "full"}, 500, 5));
  run_all(engine);
  EXPECT_EQ(engine.result(id).reason, FinishReason::cancelled);
  EXPECT_EQ(engine.result(talks).tokens.size(), 60u);
}

TEST(SlicedChunks, ThatFailEndTheirRequestAlone) {
  constexpr Token kDamaged = 77;
  Engine engine(sliced(kALayer, "damaged-embedding"));
  Request other = talking(engine), bad = request_of(engine, {"full", "full"}, 300, 5);
  for (Request* each : {&other, &bad}) {
    for (Token& token : each->prompt) token += token == kDamaged ? 1 : 0;
    each->sampling.logit_bias = {{kDamaged, -1000}};
  }
  const std::vector<Token> wanted = calm(other, sliced(0, "damaged-embedding")).tokens;
  bad.prompt[280] = kDamaged;
  const RequestId talks = engine.submit(other);
  engine.step();
  const RequestId id = engine.submit(bad);
  run_all(engine);
  EXPECT_EQ(engine.result(id).reason, FinishReason::failed);
  EXPECT_THAT(engine.result(id).error, HasSubstr("not finite"));
  EXPECT_EQ(engine.result(talks).tokens, wanted);
}

TEST(SlicedChunks, WithTooLittleRoomForAll) {
  EngineOptions options = with_room_for(1024);
  options.slice_seconds = kALayer;
  Engine engine(options);
  std::vector<Request> requests;
  std::vector<RequestId> ids;
  for (std::uint32_t i = 0; i < 6; ++i) {
    requests.push_back(request_of(engine, {"quest", i % 2 == 0 ? "quest" : "full"}, 200 + 40 * i, i));
    requests.back().max_tokens = 150;
    ids.push_back(engine.submit(requests.back()));
  }
  run_all(engine);
  EXPECT_GT(engine.stats().preemptions, 0);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(engine.result(ids[i]).reason, FinishReason::length) << engine.result(ids[i]).error;
    EXPECT_EQ(engine.result(ids[i]).tokens, calm(requests[i], with_room_for(1024)).tokens) << i;
  }
  EXPECT_EQ(engine.stats().pages_free, engine.stats().pages_total);
}

TEST(SlicedChunks, OfAServiceThatManyThreadsUse) {
  Engine engine(sliced(kALayer));
  {
    Service service(engine, {.queue = 64, .running = 6});
    std::vector<std::thread> threads;
    for (std::uint32_t thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&, thread] {
        std::mt19937 random(thread);
        for (int round = 0; round < (kSanitized ? 6 : 25); ++round) {
          Request request =
              request_of(engine, {"full", random() % 2 == 0 ? "full" : "tidal"}, 20 + random() % 400, round);
          request.max_tokens = 20;
          std::vector<Stream> streams = service.submit(request, 1 + static_cast<int>(random() % 3));
          if (random() % 3 == 0) streams.pop_back();
          for (Stream& stream : streams) {
            for (int event = 0; event < 4; ++event) stream.next(std::chrono::milliseconds(random() % 20));
            if (random() % 3 == 0) stream.cancel();
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(engine.stats().pages_free, engine.stats().pages_total);
  EXPECT_EQ(engine.stats().running + engine.stats().waiting, 0);
}

TEST(SlicedChunks, OfLessThanNoTimeAreRefused) {
  EXPECT_THAT([] { Engine engine(sliced(-1)); }, ThrowsMessage<UserError>(HasSubstr("slices of -1 s")));
  EXPECT_THAT([] { Engine engine(sliced(std::nan(""))); }, ThrowsMessage<UserError>(HasSubstr("slices of nan s")));
}

}  // namespace
}  // namespace glimpse::engine
