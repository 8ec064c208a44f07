// What a Stream and its Service know of one request. Who writes what stands at the members; the rest any thread may
// call. Inside engine only.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "glimpse/engine/engine.h"
#include "glimpse/engine/stream.h"
#include "glimpse/engine/watcher.h"

namespace glimpse::engine {

/// A place for each kind of event: their order is always the same.
struct Stream::Ticket {
  const TimePoint submitted = std::chrono::steady_clock::now();
  const std::function<void()> wake;     ///< service.h: Wake
  std::atomic<bool> cancelled = false;  ///< asked for
  std::int64_t group = 0;               ///< of those that share a prompt; 0: none. Set before it is queued
  std::shared_ptr<Watcher> watcher;     ///< or none. The same

  // The Service's thread alone, once the request is queued.
  Request request;
  std::size_t overtaken = 0;  ///< by so many while it waited: a group's first one counts
  bool begun = false;
  std::size_t given = 0;  ///< tokens
  TimePoint last_token;   ///< of the clock's epoch: there was none

  std::mutex mutex;
  std::condition_variable news;
  // Under the mutex: what nobody has taken.
  std::optional<StreamEvent> started, prefill, finished;
  std::vector<StreamToken> tokens;
  std::vector<text::TokenLogprobs> prompt_logprobs;  ///< goes with the first token
  std::string text;                                  ///< goes with the next event of tokens, or with the last one
  bool closed = false;                               ///< `finished` was taken
  Engine* engine = nullptr;                          ///< that has the request as `id`; null before and after
  RequestId id = -1;

  Ticket(Request wanted, std::function<void()> told) : wake(std::move(told)), request(std::move(wanted)) {}

  /// Any thread. The Service looks between two passes, and a chunk of the prompt that is running stops in its middle.
  void cancel() {
    cancelled = true;
    const std::lock_guard lock(mutex);
    if (engine != nullptr) engine->cancel_soon(id);
  }
  /// Under the mutex.
  bool has_event() const { return started || prefill || !tokens.empty() || finished; }
  StreamEvent take();
  template <class Change>
  void change(const Change& make) {
    {
      const std::lock_guard lock(mutex);
      make();
    }
    news.notify_one();
    if (wake) wake();
  }
};

}  // namespace glimpse::engine
