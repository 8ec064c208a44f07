// Requests that do not fit together: who waits, who is preempted, and that nobody can tell from the answer. Cancelling
// in the middle of a chunk, stop strings and turns of prompts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <future>
#include <thread>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/kernels/views.h"
#include "tests/engine/gates.h"
#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

using ::testing::HasSubstr;

struct Kind {
  std::string name, policy;
  bool lossless = false;
  std::int64_t correct_every = 0;
  std::map<std::string, std::string> extra = {};
};

void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}

Request request_of(const Engine& engine, const Kind& kind, std::size_t prompt, std::uint32_t seed) {
  Request request;
  request.prompt = random_tokens(prompt, engine.tokenizer().size(), seed);
  policies::PolicyOptions how = kind.policy == "full" ? policies::PolicyOptions{} : budget("64", kind.extra);
  if (kind.policy != "full") add_needed(kind.policy, reference::test_model("llama"), how);
  request.plan = make(engine, kind.policy, how);
  request.ignore_end = true;
  request.lossless = kind.lossless;
  request.draft_tokens = kind.lossless ? 3 : 0;  // with the row of another request: as many as have the bits of one row
  request.correct_every = kind.correct_every;
  return request;
}

/// One of the method full, of so many tokens to prefill and to generate.
Request full_request(const Engine& engine, std::size_t prompt, std::int64_t tokens, std::uint32_t seed) {
  Request request = request_of(engine, {"full", "full"}, prompt, seed);
  request.max_tokens = tokens;
  return request;
}

EngineOptions with_room_for(std::int64_t tokens) {
  EngineOptions options = options_for(reference::test_model("llama"), KvType::bf16);
  options.context = tokens;
  options.sequences = 1;
  options.prefill_chunk = 128;
  return options;
}

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("preempted" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::filesystem::path file(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

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
    EXPECT_EQ(result.tokens, alone(requests[i], options)) << wanted[i].first.name;
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
      EXPECT_THAT(result.error, testing::AllOf(HasSubstr("cannot wait in a file"), HasSubstr("'/nowhere/at/all'")));
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

TEST(Cancelled, InTheMiddleOfAChunkBesideOthers) {
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
