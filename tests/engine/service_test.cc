// Service: events of streams from several threads, full queues, slow readers, cancelling, dropping and shutdown.
#include "glimpse/engine/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "glimpse/base/error.h"
#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// One that runs until it is cancelled: to the end of the context, thousands of passes.
Request long_request(const Engine& engine) {
  Request request = request_for(engine, 8, "full", 9);
  request.max_tokens = -1;
  return request;
}

std::vector<StreamEvent> rest_of(Stream& stream) {
  std::vector<StreamEvent> events;
  while (std::optional<StreamEvent> event = stream.next()) events.push_back(std::move(*event));
  return events;
}

Result result_of(Stream& stream) {
  return rest_of(stream).back().result;
}

std::vector<Token> tokens_of(std::span<const StreamEvent> events) {
  std::vector<Token> tokens;
  for (const StreamEvent& event : events) {
    for (const StreamToken& each : event.tokens) tokens.push_back(each.token);
  }
  return tokens;
}

/// What every stream keeps to, read or not.
void expect_order(std::span<const StreamEvent> events) {
  using Kind = StreamEvent::Kind;
  ASSERT_FALSE(events.empty());
  TimePoint at;
  std::int64_t done = 0, pass = 0;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const StreamEvent& event = events[i];
    EXPECT_EQ(event.kind == Kind::finished, i + 1 == events.size());
    if (event.kind != Kind::finished) {
      EXPECT_EQ(event.kind == Kind::started, i == 0);
    }
    EXPECT_LE(at, event.at);
    at = event.at;
    if (event.kind == Kind::prefill) {
      EXPECT_GT(event.done, done);
      EXPECT_LE(event.done, event.total);
      done = event.done;
    }
    EXPECT_EQ(event.kind == Kind::tokens, !event.tokens.empty());
    for (const StreamToken& token : event.tokens) {
      EXPECT_GT(token.pass, pass);
      EXPECT_LE(token.at, event.at);
      pass = token.pass;
    }
  }
  EXPECT_EQ(tokens_of(events), events.back().result.tokens);
}

TEST(Service, GivesEachRequestTheTokensThatItGetsAlone) {
  Engine engine(options_for(reference::test_model("llama")));
  const std::vector<Request> requests{request_for(engine, 700, "tidal", 1), request_for(engine, 90, "full", 2),
                                      request_for(engine, 300, "streaming", 3)};
  Service service(engine);
  std::vector<Stream> streams;
  for (const Request& request : requests) streams.push_back(service.submit(request));
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const std::vector<StreamEvent> events = rest_of(streams[i]);
    expect_order(events);
    EXPECT_TRUE(streams[i].ended());
    EXPECT_FALSE(streams[i].next());
    EXPECT_EQ(events.back().result.reason, FinishReason::length);
    EXPECT_EQ(tokens_of(events), alone(requests[i])) << i;
    std::string text, pieces;
    for (const StreamEvent& event : events) {
      for (const StreamToken& token : event.tokens) text += token.bytes;
    }
    for (const Token token : events.back().result.tokens) pieces += engine.tokenizer().piece(token);
    EXPECT_EQ(text, pieces);
    text::Utf8Stream whole;
    std::string given;
    for (const StreamEvent& event : events) given += event.text;
    std::string wanted = whole.push(pieces);
    wanted += whole.finish();
    EXPECT_EQ(given, wanted);
  }
  const ServiceMetrics metrics = service.metrics();
  EXPECT_EQ(metrics.submitted, 3);
  EXPECT_EQ(metrics.ended_as(FinishReason::length), 3);
  EXPECT_EQ(metrics.running, 0);
  EXPECT_EQ(metrics.queued, 0);
  EXPECT_EQ(metrics.prompt_tokens, 700 + 90 + 300);
  EXPECT_EQ(metrics.generated_tokens, 3 * 12);
  EXPECT_EQ(metrics.queue.count, 3);
  EXPECT_EQ(metrics.first_token.count, 3);
  EXPECT_EQ(metrics.between_tokens.count, 3 * 11);
  EXPECT_GE(metrics.chunk_pass.count, 2) << "700 tokens are two chunks of 512";
  EXPECT_LE(metrics.chunk_pass.count, 4) << "short prompts may share a pass";
  EXPECT_EQ(metrics.pages_used, 0);
}

TEST(Service, AStreamThatNobodyReadsStallsNothing) {
  Engine engine(options_for(reference::test_model("llama")));
  Service service(engine);
  const Request request = request_for(engine, 1100, "tidal", 1);
  Stream unread = service.submit(request);
  Stream read = service.submit(request_for(engine, 40, "full", 2));
  rest_of(read);
  while (service.metrics().ended_as(FinishReason::length) < 2) std::this_thread::yield();
  const std::vector<StreamEvent> events = rest_of(unread);
  expect_order(events);
  ASSERT_EQ(events.size(), 4u) << "started, the last progress, all tokens, finished";
  EXPECT_EQ(events[1].done, 1100);
  EXPECT_EQ(events[2].tokens.size(), 12u);
  EXPECT_EQ(tokens_of(events), alone(request));
}

TEST(Service, ProgressAndTokensComeWhileTheRequestRuns) {
  Engine engine(options_for(reference::test_model("llama")));
  Service service(engine);
  Request request = long_request(engine);
  Stream stream = service.submit(request);
  EXPECT_EQ(stream.next()->kind, StreamEvent::Kind::started);
  EXPECT_EQ(stream.next()->kind, StreamEvent::Kind::prefill);
  EXPECT_EQ(stream.next()->kind, StreamEvent::Kind::tokens);
  EXPECT_EQ(stream.next()->kind, StreamEvent::Kind::tokens) << "of a later pass: what follows is of the first";
  const ServiceMetrics metrics = service.metrics();
  EXPECT_EQ(metrics.running, 1);
  EXPECT_EQ(metrics.queued, 0);
  EXPECT_GT(metrics.pages_used, 0);
  stream.cancel();
  stream.cancel();
  const std::vector<StreamEvent> events = rest_of(stream);
  EXPECT_EQ(events.back().result.reason, FinishReason::cancelled);
  EXPECT_LT(events.back().result.tokens.size(), 4000u);
  EXPECT_EQ(service.metrics().ended_as(FinishReason::cancelled), 1);
}

TEST(Service, ACancelledStreamGetsWhatWasHeldBackForAStopString) {
  Engine engine(options_for(reference::test_model("llama")));
  Request request = request_for(engine, 40, "full", 1);
  request.max_tokens = 200;
  const std::vector<Token> known = alone(request);
  std::string held;  // from the second token on everything may begin it, until the answer ends
  for (std::size_t i = 1; i < known.size(); ++i) held += engine.tokenizer().piece(known[i]);
  request.stop = {held + "\x01"};
  Service service(engine);
  Stream stream = service.submit(request);
  StreamEvent event;
  do {
    event = *stream.next();
  } while (event.kind != StreamEvent::Kind::tokens);
  std::vector<Token> given;
  for (const StreamToken& token : event.tokens) given.push_back(token.token);
  stream.cancel();
  const std::vector<StreamEvent> rest = rest_of(stream);
  for (const Token token : tokens_of(rest)) given.push_back(token);
  EXPECT_EQ(given, rest.back().result.tokens);
  EXPECT_EQ(given, std::vector<Token>(known.begin(), known.begin() + static_cast<std::ptrdiff_t>(given.size())));
}

TEST(Service, WakesItsCallerBehindEveryEvent) {
  Engine engine(options_for(reference::test_model("llama")));
  std::mutex mutex;
  std::condition_variable news;
  int woken = 0;
  Service service(engine);
  const Request request = request_for(engine, 700, "tidal", 1);
  Stream stream = service.submit(request, [&] {
    const std::lock_guard lock(mutex);
    ++woken;
    news.notify_one();
  });
  std::vector<StreamEvent> events;
  int seen = 0;
  while (!stream.ended()) {
    std::unique_lock lock(mutex);
    news.wait(lock, [&] { return woken > seen; });
    seen = woken;
    lock.unlock();
    while (std::optional<StreamEvent> event = stream.next(std::chrono::nanoseconds(0))) {
      events.push_back(std::move(*event));
    }
  }
  expect_order(events);
  EXPECT_EQ(tokens_of(events), alone(request));
  EXPECT_EQ(woken, 1 + 2 + 12 + 1) << "started, two chunks, twelve tokens, finished";
}

TEST(Service, TextBeforeAStopStringComesWithoutItsToken) {
  Engine engine(options_for(reference::test_model("llama")));
  Request request = request_for(engine, 40, "full", 1);
  request.max_tokens = 200;
  const std::vector<Token> known = alone(request);
  // The end of a token of several letters: its beginning is text, and it is none of the answer's tokens.
  std::size_t at = 2;
  const auto piece = [&](std::size_t i) { return engine.tokenizer().piece(known[i]); };
  const auto letters = [](const std::string& text) {
    return text.size() >= 3 && std::all_of(text.begin() + 1, text.end(), [](char c) { return c >= 'a' && c <= 'z'; });
  };
  while (at < known.size() && !letters(piece(at))) ++at;
  ASSERT_LT(at, known.size());
  request.stop = {piece(at).substr(1)};
  std::string before;
  for (std::size_t i = 0; i <= at; ++i) before += piece(i);
  before.resize(before.find(request.stop[0]));
  text::Utf8Stream whole;
  Service service(engine);
  Stream stream = service.submit(request);
  const std::vector<StreamEvent> events = rest_of(stream);
  std::string text;
  for (const StreamEvent& event : events) text += event.text;
  std::string wanted = whole.push(before);
  wanted += whole.finish();
  EXPECT_EQ(text, wanted);
  EXPECT_EQ(events.back().result.reason, FinishReason::stop);
}

TEST(Service, CancelsWhatWaits) {
  Engine engine(options_for(reference::test_model("llama")));
  Service service(engine, {.queue = 4, .running = 1});
  Stream running = service.submit(long_request(engine));
  running.next();
  Stream waiting = service.submit(request_for(engine, 40, "full", 1));
  EXPECT_FALSE(waiting.next(std::chrono::nanoseconds(0)));
  EXPECT_FALSE(waiting.ended());
  EXPECT_EQ(service.metrics().queued, 1);
  waiting.cancel();
  const std::vector<StreamEvent> events = rest_of(waiting);
  ASSERT_EQ(events.size(), 1u) << "it never began";
  EXPECT_EQ(events[0].result.reason, FinishReason::cancelled);
  EXPECT_EQ(service.metrics().running, 1);
}

TEST(Service, ADroppedStreamMakesRoomForTheNext) {
  Engine engine(options_for(reference::test_model("llama")));
  Service service(engine, {.queue = 4, .running = 1});
  {
    Stream dropped = service.submit(long_request(engine));
    dropped.next();
  }
  Stream assigned = service.submit(long_request(engine));
  assigned.next();
  const Request request = request_for(engine, 40, "full", 1);
  assigned = service.submit(request);
  EXPECT_EQ(result_of(assigned).tokens, alone(request));
  EXPECT_EQ(service.metrics().ended_as(FinishReason::cancelled), 2);
}

TEST(Service, AFullQueueRefusesAndTakesAgain) {
  Engine engine(options_for(reference::test_model("llama")));
  Service service(engine, {.queue = 2, .running = 1});
  Stream running = service.submit(long_request(engine));
  running.next();
  const Request request = request_for(engine, 40, "full", 1);
  Stream first = service.submit(request);
  Stream second = service.submit(request);
  EXPECT_THAT([&] { service.submit(request); }, ThrowsMessage<QueueFull>(HasSubstr("the queue holds 2; submit again")));
  EXPECT_EQ(service.metrics().refused, 1);
  EXPECT_EQ(service.metrics().submitted, 3);
  running.cancel();
  EXPECT_EQ(first.next()->kind, StreamEvent::Kind::started);
  Stream third = service.submit(request);
  EXPECT_EQ(result_of(third).reason, FinishReason::length);
}

TEST(Service, ABadRequestFailsInTheEnginesWordsAndTheOthersGoOn) {
  Engine engine(options_for(reference::test_model("llama")));
  Request bad = request_for(engine, 10, "full", 1);
  bad.prompt.push_back(engine.tokenizer().size());
  std::string words;
  try {
    engine.submit(bad);
  } catch (const UserError& error) {
    words = error.what();
  }
  ASSERT_NE(words, "");
  Service service(engine);
  const Request good = request_for(engine, 40, "full", 2);
  Stream goes_on = service.submit(good);
  Stream fails = service.submit(bad);
  const std::vector<StreamEvent> events = rest_of(fails);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].result.reason, FinishReason::failed);
  EXPECT_EQ(events[0].result.error, words);
  EXPECT_EQ(result_of(goes_on).tokens, alone(good));
}

TEST(Service, AFullCacheLetsTheLastThatCameWait) {
  EngineOptions options = options_for(reference::test_model("llama"));
  options.sequences = 1;
  options.context = 1024;
  Engine engine(options);
  Service service(engine);
  Request first = request_for(engine, 900, "full", 1);
  first.max_tokens = 40;
  Stream stays = service.submit(first);
  const Request second = request_for(engine, 900, "full", 2);
  Stream waits = service.submit(second);
  const Result last = result_of(waits);
  EXPECT_EQ(last.tokens, alone(second));
  EXPECT_GT(last.stats.waited_s, 0);
  EXPECT_EQ(result_of(stays).tokens, alone(first));
  EXPECT_EQ(service.metrics().failed_passes, 0);
}

TEST(Service, EndsWithRequestsRunningAndTheirStreamsKnow) {
  Engine engine(options_for(reference::test_model("llama")));
  std::optional<Service> service(std::in_place, engine, ServiceOptions{.queue = 4, .running = 1});
  Stream running = service->submit(long_request(engine));
  running.next();
  Stream waiting = service->submit(long_request(engine));
  service.reset();
  EXPECT_EQ(engine.stats().pages_free, engine.stats().pages_total);
  for (Stream* stream : {&running, &waiting}) {
    const std::vector<StreamEvent> events = rest_of(*stream);
    EXPECT_EQ(events.back().result.reason, FinishReason::cancelled);
    EXPECT_TRUE(stream->ended());
    stream->cancel();
  }
  const Request request = request_for(engine, 40, "full", 1);
  Service another(engine);
  Stream next = another.submit(request);
  EXPECT_EQ(result_of(next).tokens, alone(request)) << "the engine is as it was";
}

TEST(Service, RefusesWhatItCannotServe) {
  Engine engine(options_for(reference::test_model("llama")));
  EXPECT_THAT([&] { Service(engine, {.queue = 0}); }, ThrowsMessage<UserError>(HasSubstr("queue is 0; give 1")));
  EXPECT_THAT([&] { Service(engine, {.running = -1}); }, ThrowsMessage<UserError>(HasSubstr("running is -1")));
  Service service(engine);
  for (const int which : {0, 1, 2}) {
    Request request = request_for(engine, 10, "full", 1);
    if (which == 0) request.on_token = [](Token, std::string_view) {};
    if (which == 1) request.on_prefill = [](std::int64_t, std::int64_t) {};
    if (which == 2) request.on_sets = [](const SetTrace&) {};
    EXPECT_THAT([&] { service.submit(request); }, ThrowsMessage<UserError>(HasSubstr("read the stream's events")));
  }
  Request keeps = request_for(engine, 10, "full", 1);
  keeps.keep = true;
  EXPECT_THAT([&] { service.submit(keeps); }, ThrowsMessage<UserError>(HasSubstr("Engine itself")));
  Stream stream = service.submit(request_for(engine, 10, "full", 1));
  const Stream moved = std::move(stream);
  EXPECT_THAT([&] { stream.next(); }, ThrowsMessage<UserError>(HasSubstr("moved from")));
}

/// A thread's streams, with what was read of each.
class Caller {
 public:
  Caller(Service& service, std::vector<Request> requests, std::uint32_t seed)
      : service_(service), requests_(std::move(requests)), random_(seed) {}

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      const std::uint32_t what = random_() % 10;
      if (open_.empty() || what < 3) {
        submit();
        continue;
      }
      const std::size_t index = random_() % open_.size();
      if (what == 3) {
        open_[index].stream.cancel();
      } else if (what == 4) {
        drop(index);
      } else {
        read(index, what == 5);
      }
    }
    while (!open_.empty()) read(open_.size() - 1, true);
  }
  std::int64_t submitted() const { return submitted_; }
  std::int64_t refused() const { return refused_; }

 private:
  struct Open {
    Stream stream;
    std::vector<StreamEvent> events;
  };

  void submit() {
    try {
      open_.push_back({service_.submit(requests_[random_() % requests_.size()]), {}});
      ++submitted_;
    } catch (const QueueFull&) {
      ++refused_;
    }
  }
  void drop(std::size_t index) {
    std::swap(open_[index], open_.back());
    open_.pop_back();
  }
  void read(std::size_t index, bool waits) {
    Open& open = open_[index];
    std::optional<StreamEvent> event = waits ? open.stream.next() : open.stream.next(std::chrono::nanoseconds(0));
    if (event) open.events.push_back(std::move(*event));
    if (!open.stream.ended()) return;
    expect_order(open.events);
    drop(index);
  }

  Service& service_;
  std::vector<Request> requests_;
  std::mt19937 random_;
  std::vector<Open> open_;
  std::int64_t submitted_ = 0, refused_ = 0;
};

// 10,000 operations. The engine refuses one of the requests. It has one thread: the callers and the Service race here.
TEST(Service, AnyOrderOfCallsFromFourThreadsLeavesNothingBehind) {
  EngineOptions options = options_for(reference::test_model("llama"), KvType::f32, 1);
  options.sequences = 3;
  options.context = 512;
  Engine engine(options);
  std::vector<Request> requests{request_for(engine, 1, "full", 1), request_for(engine, 20, "tidal", 2),
                                request_for(engine, 9, "streaming", 3), request_for(engine, 13, "quest", 4),
                                request_for(engine, 512, "full", 5)};
  for (Request& request : requests) request.max_tokens = 1 + static_cast<std::int64_t>(request.prompt.size() % 5);
  {
    Service service(engine, {.queue = 16, .running = 8});
    std::deque<Caller> callers;
    for (std::uint32_t i = 0; i < 4; ++i) callers.emplace_back(service, requests, i + 1);
    std::vector<std::thread> threads;
    for (Caller& caller : callers) threads.emplace_back([&caller] { caller.run(2500); });
    for (std::thread& thread : threads) thread.join();
    std::int64_t submitted = 0, refused = 0, finished = 0;
    for (const Caller& caller : callers) {
      submitted += caller.submitted();
      refused += caller.refused();
    }
    callers.clear();
    Stream last = service.submit(requests[0]);
    EXPECT_EQ(result_of(last).reason, FinishReason::length);
    const ServiceMetrics metrics = service.metrics();
    EXPECT_EQ(metrics.submitted, submitted + 1);
    EXPECT_EQ(metrics.refused, refused);
    EXPECT_GT(metrics.ended_as(FinishReason::length), 1);
    EXPECT_GT(metrics.ended_as(FinishReason::cancelled), 0);
    EXPECT_GT(metrics.ended_as(FinishReason::failed), 0);
    for (const std::int64_t count : metrics.finished) finished += count;
    EXPECT_EQ(finished, submitted + 1 - metrics.queued - metrics.running);
  }
  EXPECT_EQ(engine.stats().pages_free, engine.stats().pages_total);
  EXPECT_THROW(engine.result(1), UserError) << "released";
}

}  // namespace
}  // namespace glimpse::engine
