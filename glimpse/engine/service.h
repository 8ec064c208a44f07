// A thread-safe front over an Engine: any thread submits and cancels, each request's events are read from its Stream.
// One thread of the Service alone calls the Engine, and runs passes as long as there is a request.
//
// The Engine outlives the Service. Nobody else calls it meanwhile, but for what never changes: tokenizer, shape,
// context, threads, kv_type, row_pair_bytes.
//
// No code of a caller's runs on the Service's thread, and a reader that is slow, or never reads, stalls no pass: events
// that nobody took are put together. Of prefill progress the last stays, tokens are appended to those that wait. So a
// stream holds at most the tokens of its own answer, which the request's max_tokens and the context bound.
//
// What fails. submit throws where the queue is full. What Engine::submit refuses, and a request that fails later, is
// FinishReason::failed with the error in the stream's last event. A pass that fails for all requests ends the one that
// came last, with that error; the others go on. Where the Service has no memory for its own lists it ends: all requests
// end as failed, and submit throws.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/engine/engine.h"
#include "glimpse/engine/service_metrics.h"

namespace glimpse::engine {

struct ServiceOptions {
  int queue = 64;   ///< requests that may wait for their turn
  int running = 8;  ///< requests that the Engine works on at a time
};

/// The queue is full now; the same request may be submitted again later.
class QueueFull : public UserError {
 public:
  using UserError::UserError;
};

struct StreamToken {
  Token token = -1;
  std::string bytes;      ///< of the text; a character's bytes may be in several tokens
  TimePoint at;           ///< when it was known
  std::int64_t pass = 0;  ///< number of the Service's pass that gave it, ascending
};

struct StreamEvent {
  /// In this order; prefill and tokens any number of times, started not for a request that never began.
  enum class Kind : std::uint8_t { started, prefill, tokens, finished };
  Kind kind = Kind::started;
  TimePoint at;                      ///< started: when the first pass with its prompt began
  std::int64_t done = 0, total = 0;  ///< prefill: tokens of the prompt
  std::vector<StreamToken> tokens;   ///< tokens: at least one
  Result result;                     ///< finished
};

/// The events of one request. Moves only; dropping it cancels the request. It may outlive its Service, whose end is the
/// request's. One thread at a time, but cancel, which any thread may call beside it while the Stream stays where it is.
class Stream {
 public:
  Stream(Stream&&) noexcept = default;
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();

  /// Waits for an event. None at once when the last one has been taken. These throw UserError for a Stream that was
  /// moved from.
  std::optional<StreamEvent> next();
  /// None when the time is up, too; of 0 or less: takes what is there.
  std::optional<StreamEvent> next(std::chrono::nanoseconds timeout);
  /// True when the last event, `finished`, has been taken.
  bool ended() const;
  /// The request ends behind the pass that runs, as cancelled unless it has ended by then; a chunk of its prompt stops
  /// in its middle. Tokens that were held back for a stop string still come, then `finished`.
  void cancel() const;

 private:
  friend class Service;
  struct Ticket;
  explicit Stream(std::shared_ptr<Ticket> ticket) : ticket_(std::move(ticket)) {}
  Ticket& ticket() const;
  std::shared_ptr<Ticket> ticket_;
};

class Service {
 public:
  /// Throws UserError for options below 1, and where the system gives no thread.
  explicit Service(Engine& engine, const ServiceOptions& options = {});
  /// Waits for the pass that runs. All requests that have not ended are cancelled.
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  /// Queues the request; never waits for a pass. Throws QueueFull, and UserError for a request with callbacks or
  /// `keep`, which are for callers of the Engine itself. Any thread.
  Stream submit(Request request);
  /// Any thread.
  ServiceMetrics metrics() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace glimpse::engine
