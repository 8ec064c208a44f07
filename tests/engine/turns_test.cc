// Turns of prompts, requests that are cancelled in the middle of a chunk, and stop strings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <utility>

#include "glimpse/base/error.h"
#include "tests/engine/preempted_support.h"

namespace glimpse::engine {
namespace {

TEST(Cancelled, WhilePreemptedGivesEverythingBack) {
  Engine engine(with_room_for(1024));
  Request old = request_of(engine, {"full", "full"}, 600, 1);
  old.max_tokens = 300;
  Request young = request_of(engine, {"h2o", "quest"}, 200, 2);
  young.max_tokens = 400;
  const RequestId older = engine.submit(old);
  const RequestId id = engine.submit(young);
  while (engine.stats().preempted == 0) ASSERT_TRUE(engine.step());
  EXPECT_GT(engine.result(id).tokens.size(), 0U);
  engine.cancel(id);
  run_all(engine);
  EXPECT_EQ(engine.result(id).reason, FinishReason::cancelled);
  EXPECT_EQ(engine.result(older).reason, FinishReason::length);
  EXPECT_EQ(engine.stats().pages_free, engine.stats().pages_total);
}

/// A prompt whose session is whole answers before the pass of its first step: a callback between two chunks of others.
Request answered_at_once(const Engine& engine, const EngineOptions& options, const std::filesystem::path& file) {
  Request request = request_of(engine, {"full", "full"}, 50, 77);
  request.session = file;
  request.max_tokens = 1;
  Engine writer(options);
  writer.submit(request);
  run_all(writer);
  return request;
}

TEST(Cancelled, InTheMiddleOfAChunkThatRunsAlone) {
  const Folder folder;
  const EngineOptions options = with_room_for(2048);
  for (const char* policy : {"full", "quest", "h2o"}) {
    Engine engine(options);
    Request request = request_of(engine, {policy, policy}, 600, 3);
    request.keep = std::string(policy) != "h2o";  // what it observes of a chunk cannot be taken back
    const RequestId id = engine.submit(request);
    engine.step();
    engine.step();
    Request first = answered_at_once(engine, options, folder.file("at once"));
    first.on_token = [&](Token, std::string_view) { engine.cancel_soon(id); };
    engine.submit(first);
    EXPECT_TRUE(engine.step());  // the chunk begins, and stops
    EXPECT_EQ(engine.result(id).reason, FinishReason::cancelled) << policy;
    EXPECT_EQ(engine.result(id).stats.prefilled_tokens, 256);
    EXPECT_FALSE(engine.step());
    std::optional<Sequence> left = engine.take(id);
    EXPECT_EQ(left.has_value(), request.keep);
    if (!left) continue;
    ASSERT_EQ(left->length(), 256);
    left->prefill(std::span(request.prompt).subspan(256));
    Sequence whole = engine.open(request.plan);
    whole.prefill(request.prompt);
    const std::vector<Token> more = random_tokens(4, engine.tokenizer().size(), 9);
    EXPECT_TRUE(same_bits(decoded(*left, more), decoded(whole, more))) << policy;
  }
}

// The chunk is in when the heads of those beside it are told.
TEST(Cancelled, BehindAChunkBesideOthers) {
  Engine engine(with_room_for(2048));
  Request watched = request_of(engine, {"tidal", "tidal"}, 200, 4);
  watched.max_tokens = 12;
  RequestId id = 0;
  int seen = 0;
  watched.on_sets = [&](const SetTrace&) {
    if (++seen == 20) engine.cancel_soon(id);
  };
  const RequestId goes_on = engine.submit(watched);
  Request prompt = request_of(engine, {"quest", "quest"}, 1500, 5);
  prompt.keep = true;
  id = engine.submit(prompt);
  run_all(engine);
  EXPECT_EQ(engine.result(id).reason, FinishReason::cancelled);
  EXPECT_EQ(engine.result(id).stats.prefilled_tokens % 128, 0);
  EXPECT_LT(engine.result(id).stats.prefilled_tokens, 1500);
  std::optional<Sequence> left = engine.take(id);
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(left->length(), engine.result(id).stats.prefilled_tokens);
  EXPECT_EQ(engine.result(goes_on).reason, FinishReason::length);
  watched.on_sets = {};
  EXPECT_EQ(engine.result(goes_on).tokens, alone(watched, with_room_for(2048)));
}

TEST(Cancelled, FromAnotherThread) {
  Engine engine(with_room_for(4096));
  for (const std::size_t prompt : {3000U, 100U}) {  // in a chunk, or while it decodes
    Request request = request_of(engine, {"quest", "quest"}, prompt, 6);
    std::promise<void> begun;
    bool told = false;
    request.on_prefill = [&](std::int64_t, std::int64_t) {
      if (!std::exchange(told, true)) begun.set_value();
    };
    const RequestId id = engine.submit(request);
    std::thread canceller([&, begins = begun.get_future()]() mutable {
      begins.wait();
      engine.cancel_soon(id);
    });
    run_all(engine);  // without an end of its own
    canceller.join();
    EXPECT_EQ(engine.result(id).reason, FinishReason::cancelled);
    EXPECT_EQ(engine.stats().pages_free, engine.stats().pages_total);
  }
}

TEST(Cancelled, SoonBeforeAStepAndForIdsThatAreGone) {
  Engine engine(with_room_for(512));
  const RequestId id = engine.submit(request_of(engine, {"full", "full"}, 100, 6));
  engine.cancel_soon(id);
  engine.cancel_soon(id + 5);
  EXPECT_FALSE(engine.finished(id));
  EXPECT_FALSE(engine.step());
  EXPECT_EQ(engine.result(id).reason, FinishReason::cancelled);
  engine.release(id);
  engine.cancel_soon(id);
}

TEST(Turns, NoPromptStarvesAndNoStreamWaits) {
  EngineOptions options = with_room_for(4096);
  Engine engine(options);
  Request stream = request_of(engine, {"full", "full"}, 40, 7);
  stream.max_tokens = 60;
  const RequestId streams = engine.submit(stream);
  engine.step();
  std::vector<std::int64_t> chunks(3, 0);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    Request request = request_of(engine, {"quest", "quest"}, 10 * 128, static_cast<std::uint32_t>(i));
    request.max_tokens = 1;
    request.on_prefill = [&chunks, i](std::int64_t done, std::int64_t) {
      EXPECT_EQ(done, ++chunks[i] * 128);
      const auto [least, most] = std::minmax_element(chunks.begin(), chunks.end());
      EXPECT_LE(*most - *least, 1);
    };
    engine.submit(request);
  }
  std::size_t tokens = 1;
  for (int step = 0; step < 30; ++step) {
    engine.step();
    EXPECT_EQ(engine.result(streams).tokens.size(), ++tokens);
  }
  EXPECT_EQ(chunks, std::vector<std::int64_t>(3, 10));
}

TEST(Turns, AStepTakesAsManyChunksAsItsTokensAllow) {
  EngineOptions options = with_room_for(4096);
  options.step_tokens = 3 * 128;
  Engine engine(options);
  std::vector<RequestId> ids;
  for (std::uint32_t i = 0; i < 4; ++i) {
    ids.push_back(engine.submit(full_request(engine, 256, 2, i)));
  }
  engine.step();
  std::vector<std::int64_t> done;
  for (const RequestId id : ids) done.push_back(engine.result(id).stats.prefilled_tokens);
  EXPECT_EQ(done, (std::vector<std::int64_t>{128, 128, 128, 0}));
  engine.step();
  EXPECT_EQ(engine.result(ids[3]).stats.prefilled_tokens, 128);
  run_all(engine);
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(engine.result(ids[i]).tokens, alone(full_request(engine, 256, 2, i), options));
  }
  options.step_tokens = -1;
  EXPECT_THROW(Engine{options}, UserError);
}

class StopStrings : public testing::TestWithParam<bool> {};

TEST_P(StopStrings, EndTheAnswerAcrossTokens) {
  const EngineOptions options = with_room_for(512);
  Engine engine(options);
  Request request = request_of(engine, {"lossless", "quest", GetParam()}, 120, 8);
  request.max_tokens = 40;
  request.keep = true;
  std::vector<std::string> pieces;
  request.on_token = [&](Token, std::string_view bytes) { pieces.emplace_back(bytes); };
  const RequestId whole = engine.submit(request);
  run_all(engine);
  ASSERT_EQ(pieces.size(), 40U);
  // A stop string from within a token to within a later one.
  std::size_t from = 10;
  while (from < 30 && (pieces[from].size() < 2 || pieces[from + 1].empty())) ++from;
  const std::string stop = pieces[from].substr(1) + pieces[from + 1].substr(0, 1);
  std::string text, until;
  std::size_t ends = 0;  // the token that completes it first
  for (; until.find(stop) == std::string::npos; ++ends) until += pieces[ends];
  until.resize(until.find(stop));

  std::string of_tokens, of_text;
  request.stop = {"never in an answer", stop};
  request.on_token = [&](Token, std::string_view bytes) { of_tokens += bytes; };
  request.on_text = [&](std::string_view bytes) { of_text += bytes; };
  const RequestId id = engine.submit(request);
  run_all(engine);
  const Result& result = engine.result(id);
  EXPECT_EQ(result.reason, FinishReason::stop);
  EXPECT_EQ(name(result.reason), "stop");
  const std::vector<Token>& all = engine.result(whole).tokens;
  EXPECT_EQ(result.tokens, std::vector<Token>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(ends - 1)));
  EXPECT_EQ(result.stats.generated_tokens, static_cast<std::int64_t>(ends - 1));
  EXPECT_TRUE(until.starts_with(of_tokens));
  text::Utf8Stream stream;
  std::string expected = stream.push(until);
  expected += stream.finish();
  EXPECT_EQ(of_text, expected);
  // The sequence holds the prompt and the answer, nothing behind it.
  std::optional<Sequence> kept = engine.take(id);
  ASSERT_TRUE(kept.has_value());
  std::vector<Token> held(request.prompt);
  held.insert(held.end(), result.tokens.begin(), result.tokens.end());
  EXPECT_EQ(std::vector<Token>(kept->tokens().begin(), kept->tokens().end()), held);
}

INSTANTIATE_TEST_SUITE_P(Ways, StopStrings, testing::Bool(),
                         [](const auto& row) { return row.param ? "lossless" : "decoding"; });

TEST(StopString, ThatIsEmptyIsRefused) {
  Engine engine(with_room_for(512));
  Request request = request_of(engine, {"full", "full"}, 20, 1);
  request.stop = {""};
  EXPECT_THROW(engine.submit(request), UserError);
}

}  // namespace
}  // namespace glimpse::engine
