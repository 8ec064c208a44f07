// Several answers to one prompt: one prefill, and each answer the one that its request gets alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "glimpse/base/error.h"
#include "glimpse/engine/service.h"
#include "tests/engine/preempted_support.h"

namespace glimpse::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

EngineOptions together_options() {
  EngineOptions options = options_for(reference::test_model("llama"), KvType::bf16);
  options.prefill_chunk = 128;
  options.sequences = 6;
  return options;
}

/// The same prompt with seeds from 3 on; the first is greedy where `temperature` is 0, and so are all.
std::vector<Request> some(const Request& request, std::size_t count, float temperature) {
  std::vector<Request> all(count, request);
  for (std::size_t i = 0; i < count; ++i) {
    all[i].sampling.temperature = temperature;
    all[i].sampling.seed = static_cast<std::uint32_t>(3 + i);
  }
  return all;
}

std::int64_t prefilled(const Engine& engine, const std::vector<RequestId>& ids) {
  std::int64_t sum = 0;
  for (const RequestId id : ids) sum += engine.result(id).stats.prefilled_tokens;
  return sum;
}

class Together : public testing::TestWithParam<Kind> {};

TEST_P(Together, EachGetsWhatItGetsAlone) {
  Engine engine(together_options());
  Request request = request_of(engine, GetParam(), 300, 2);
  request.max_tokens = 20;
  request.draft_tokens = request.lossless ? 1 : 0;  // rows of all in a pass: as many as have the bits of one
  for (const float temperature : {0.0F, 1.0F}) {
    const std::vector<Request> requests = some(request, request.lossless ? 2 : 4, temperature);
    const std::vector<RequestId> ids = engine.submit_together(requests);
    EXPECT_EQ(engine.stats().waiting, std::ssize(requests));
    run_all(engine);
    EXPECT_EQ(prefilled(engine, ids), 300) << "one prefill";
    std::set<std::vector<Token>> answers;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Result& result = engine.result(ids[i]);
      EXPECT_EQ(result.reason, FinishReason::length) << result.error;
      EXPECT_EQ(result.tokens, alone(requests[i], together_options())) << i;
      EXPECT_EQ(result.stats.reused_tokens, i == 0 ? 0 : 300);
      answers.insert(result.tokens);
      engine.release(ids[i]);
    }
    EXPECT_EQ(answers.size(), temperature > 0 ? requests.size() : 1U);
  }
  EXPECT_EQ(engine.stats().pages_free, engine.stats().pages_total);
}

INSTANTIATE_TEST_SUITE_P(Methods, Together,
                         testing::Values(Kind{"full", "full"}, Kind{"tidal", "tidal"}, Kind{"quest", "quest"},
                                         Kind{"h2o", "h2o"}, Kind{"streaming", "streaming"},
                                         Kind{"evosparse", "evosparse"}, Kind{"lychee", "lychee-cluster"},
                                         Kind{"lossless", "quest", true}, Kind{"corrected", "tidal", false, 6}),
                         [](const auto& row) { return row.param.name; });

TEST(TogetherRequests, WhoseFirstOneIsCancelledGoOn) {
  for (const int steps : {0, 1, 2}) {
    Engine engine(together_options());
    Request request = request_of(engine, {"tidal", "tidal"}, 300, 2);
    request.max_tokens = 10;
    const std::vector<Request> requests = some(request, 4, 1);
    const std::vector<RequestId> ids = engine.submit_together(requests);
    for (int i = 0; i < steps; ++i) engine.step();
    engine.cancel_soon(ids[0]);
    engine.cancel(ids[1]);
    engine.release(ids[1]);
    engine.step();
    EXPECT_EQ(engine.result(ids[0]).reason, FinishReason::cancelled);
    engine.release(ids[0]);
    run_all(engine);
    for (const std::size_t i : {2, 3}) EXPECT_EQ(engine.result(ids[i]).tokens, alone(requests[i], together_options()));
    EXPECT_EQ(prefilled(engine, {ids[2], ids[3]}), 300);
    EXPECT_EQ(engine.stats().pages_free, engine.stats().pages_total);
  }
}

TEST(TogetherRequests, MayEndWithTheirFirstToken) {
  Engine engine(together_options());
  Request request = request_of(engine, {"full", "full"}, 200, 2);
  std::vector<Request> requests = some(request, 3, 0);
  requests[0].max_tokens = 0;
  requests[1].max_tokens = 1;
  requests[2].max_tokens = 9;
  int progress = 0;
  requests[2].on_prefill = [&](std::int64_t done, std::int64_t total) {
    EXPECT_EQ(done, total);
    ++progress;
  };
  requests[2].on_token = [&](Token, std::string_view) { EXPECT_EQ(progress, 1); };
  const std::vector<RequestId> ids = engine.submit_together(requests);
  run_all(engine);
  const std::vector<Token> whole = engine.result(ids[2]).tokens;
  EXPECT_EQ(whole.size(), 9u);
  EXPECT_TRUE(engine.result(ids[0]).tokens.empty());
  EXPECT_EQ(engine.result(ids[1]).tokens, std::vector<Token>(whole.begin(), whole.begin() + 1));
}

TEST(TogetherRequests, ThatDoNotFitTakeTurns) {
  EngineOptions options = with_room_for(640);
  Engine engine(options);
  Request request = request_of(engine, {"quest", "quest"}, 300, 2);
  request.max_tokens = 220;
  const std::vector<Request> requests = some(request, 3, 1);
  const std::vector<RequestId> ids = engine.submit_together(requests);
  const RequestId other = engine.submit(full_request(engine, 250, 60, 5));
  run_all(engine);
  EXPECT_GT(engine.stats().preemptions, 0);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(engine.result(ids[i]).reason, FinishReason::length) << engine.result(ids[i]).error;
    EXPECT_EQ(engine.result(ids[i]).tokens, alone(requests[i], options)) << i;
  }
  EXPECT_EQ(engine.result(other).reason, FinishReason::length);
}

TEST(TogetherRequests, OfASavedSession) {
  const Folder folder;
  Engine engine(together_options());
  Request request = request_of(engine, {"tidal", "tidal"}, 300, 2);
  request.max_tokens = 10;
  request.session = folder.file("session");
  request.logprobs = 1;
  for (const std::int64_t reused : {0, 300}) {  // the second time it holds the prompt whole, with its logits
    const std::vector<Request> requests = some(request, 3, 1);
    const std::vector<RequestId> ids = engine.submit_together(requests);
    run_all(engine);
    EXPECT_EQ(prefilled(engine, ids), 300 - reused);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      Request own = requests[i];
      own.session.reset();
      EXPECT_EQ(engine.result(ids[i]).tokens, alone(own, together_options())) << i;
      EXPECT_EQ(engine.result(ids[i]).stats.session.has_value(), i == 0);
    }
  }
}

TEST(TogetherRequests, ShareThePromptsLogprobs) {
  Engine engine(together_options());
  Request request = request_of(engine, {"full", "full"}, 200, 2);
  request.max_tokens = 3;
  request.prompt_logprobs = 1;
  const std::vector<RequestId> ids = engine.submit_together(some(request, 2, 0));
  run_all(engine);
  ASSERT_EQ(engine.result(ids[0]).prompt_logprobs.size(), 199u);
  for (std::size_t i = 0; i < 199; ++i) {
    EXPECT_EQ(engine.result(ids[0]).prompt_logprobs[i].logprob, engine.result(ids[1]).prompt_logprobs.at(i).logprob);
  }
}

TEST(TogetherRequests, AreRefusedWhole) {
  Engine engine(together_options());
  const Request request = request_of(engine, {"full", "full"}, 200, 2);
  EXPECT_THAT([&] { engine.submit_together({}); }, ThrowsMessage<UserError>(HasSubstr("at least one")));
  std::vector<Request> requests = some(request, 3, 0);
  requests[2].prompt.back() ^= 1;
  EXPECT_THAT([&] { engine.submit_together(requests); }, ThrowsMessage<UserError>(HasSubstr("differ")));
  requests[2] = requests[1];
  requests[2].sampling.top_p = 2;
  EXPECT_THAT([&] { engine.submit_together(requests); }, ThrowsMessage<UserError>(HasSubstr("top-p")));
  EXPECT_FALSE(engine.step()) << "nothing was queued";
  EXPECT_EQ(engine.stats().pages_free, engine.stats().pages_total);
}

TEST(TogetherStreams, OneForEachAnswer) {
  Engine engine(together_options());
  Request request = request_of(engine, {"tidal", "tidal"}, 300, 2);
  request.max_tokens = 15;
  request.sampling.temperature = 1;
  request.sampling.seed = 7;
  Service service(engine, {.queue = 8, .running = 4});
  Stream before = service.submit(full_request(engine, 100, 30, 9));
  std::vector<Stream> streams = service.submit(request, 4);  // no room beside the first
  ASSERT_EQ(streams.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    Request own = request;
    own.sampling.seed = 7 + static_cast<std::uint32_t>(i);
    std::vector<Token> tokens;
    while (const std::optional<StreamEvent> event = streams[i].next()) {
      for (const StreamToken& token : event->tokens) tokens.push_back(token.token);
    }
    EXPECT_EQ(tokens, alone(own, together_options())) << i;
  }
  const ServiceMetrics metrics = service.metrics();
  EXPECT_EQ(metrics.submitted, 5);
  EXPECT_EQ(metrics.reused_tokens, 3 * 300);
  EXPECT_THAT([&] { service.submit(request, 0); }, ThrowsMessage<UserError>(HasSubstr("ask for 1 to 4")));
  EXPECT_THAT([&] { service.submit(request, 5); }, ThrowsMessage<UserError>(HasSubstr("ask for 1 to 4")));
}

TEST(TogetherStreams, CancelledInTheQueueOrNot) {
  Engine engine(together_options());
  Request request = request_of(engine, {"full", "full"}, 300, 2);
  request.max_tokens = 15;
  Service service(engine, {.queue = 9, .running = 4});
  std::optional<Stream> before = service.submit(full_request(engine, 100, 2000, 9));
  std::vector<Stream> streams = service.submit(request, 4), more = service.submit(request, 4);
  EXPECT_THROW(service.submit(request, 2), QueueFull);
  streams[0].cancel();
  streams.erase(streams.begin() + 2);
  before.reset();
  more[3].cancel();
  more.erase(more.begin());
  for (std::vector<Stream>* group : {&streams, &more}) {
    for (Stream& stream : *group) {
      std::optional<StreamEvent> last;
      while (std::optional<StreamEvent> event = stream.next()) last = std::move(event);
      const bool stopped = &stream == &streams[0] || &stream == &more.back();
      EXPECT_EQ(last->result.reason, stopped ? FinishReason::cancelled : FinishReason::length) << last->result.error;
      if (!stopped) {
        EXPECT_EQ(last->result.tokens.size(), 15u);
      }
    }
  }
}

std::vector<StreamEvent> rest_of(Stream& stream) {
  std::vector<StreamEvent> events;
  while (std::optional<StreamEvent> event = stream.next()) events.push_back(std::move(*event));
  return events;
}

TEST(TogetherStreams, BeginAsSlotsBecomeFreeWhereTheirPromptIsKept) {
  for (const char* policy : {"tidal", "h2o"}) {
    EngineOptions options = together_options();
    options.prefix_bytes = -1;
    Engine engine(options);
    Request request = request_of(engine, {policy, policy}, 300, 2);
    request.max_tokens = 15;
    request.sampling.temperature = 1;
    request.sampling.seed = 7;
    Service service(engine, {.queue = 8, .running = 3});
    Stream before = service.submit(full_request(engine, 100, 4000, 9));
    before.next();
    std::vector<Stream> streams = service.submit(request, 3);
    const Request single = full_request(engine, 50, 5, 4);
    Stream behind = service.submit(single);
    std::int64_t computed = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      Request own = request;
      own.sampling.seed = 7 + static_cast<std::uint32_t>(i);
      const Result result = rest_of(streams[i]).back().result;
      EXPECT_EQ(result.tokens, alone(own, together_options())) << i;
      computed += result.stats.prefilled_tokens;
    }
    EXPECT_EQ(computed, 300) << "one prefill";
    EXPECT_EQ(rest_of(behind).back().result.tokens, alone(single, together_options()));
    EXPECT_EQ(service.metrics().running, 1) << "nobody waited for the first one";
  }
}

TEST(TogetherStreams, LetAsManyBeforeAsThereAreSlotsWhereTheirPromptIsNotKept) {
  Engine engine(together_options());
  Request request = request_of(engine, {"tidal", "tidal"}, 300, 2);
  request.max_tokens = 15;
  Service service(engine, {.queue = 8, .running = 2});
  Stream before = service.submit(full_request(engine, 100, 4000, 9));
  before.next();
  std::vector<Stream> streams = service.submit(request, 2), others;
  for (std::uint32_t i = 0; i < 3; ++i) others.push_back(service.submit(full_request(engine, 50, 5, i)));
  for (const std::size_t i : {0, 1}) EXPECT_EQ(rest_of(others[i]).back().result.reason, FinishReason::length);
  EXPECT_FALSE(streams[0].next(std::chrono::nanoseconds(0)));
  EXPECT_FALSE(others[2].next(std::chrono::nanoseconds(0))) << "the group is next";
  EXPECT_EQ(service.metrics().queued, 3);
  before.cancel();
  std::int64_t computed = 0;
  TimePoint first_began = TimePoint::max();
  for (Stream& stream : streams) {
    const std::vector<StreamEvent> events = rest_of(stream);
    first_began = std::min(first_began, events.front().at);
    EXPECT_EQ(events.back().result.tokens, alone(request, together_options()));
    computed += events.back().result.stats.prefilled_tokens;
  }
  EXPECT_EQ(computed, 300) << "one prefill";
  EXPECT_LT(first_began, rest_of(others[2]).front().at);
}

}  // namespace
}  // namespace glimpse::engine
