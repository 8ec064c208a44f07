// What becomes of a request that a Service has: its events, in order. service.h says who may call what.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "glimpse/engine/request.h"
#include "glimpse/engine/service_metrics.h"

namespace glimpse::engine {

struct StreamToken {
  Token token = -1;
  std::string bytes;                            ///< of the text; a character's bytes may be in several tokens
  TimePoint at;                                 ///< when it was known
  std::int64_t pass = 0;                        ///< number of the Service's pass that gave it, ascending
  std::optional<text::TokenLogprobs> logprobs;  ///< where the request asks for them
};

struct StreamEvent {
  /// In this order; prefill and tokens any number of times, started not for a request that never began.
  enum class Kind : std::uint8_t { started, prefill, tokens, finished };
  Kind kind = Kind::started;
  TimePoint at;                      ///< started: when the first pass with its prompt began
  std::int64_t done = 0, total = 0;  ///< prefill: tokens of the prompt
  std::int64_t reused = 0;           ///< prefill: of those done, the first ones, which were there already
  std::vector<StreamToken> tokens;   ///< tokens: at least one
  /// tokens: with the first of them, Result::prompt_logprobs.
  std::vector<text::TokenLogprobs> prompt_logprobs;
  /// tokens, finished: what the answer's text has grown by, in whole UTF-8 sequences; it may come an event later than
  /// its token. What stands before a stop string in the token that completes it is of no token: it comes here alone.
  std::string text;
  Result result;  ///< finished
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

}  // namespace glimpse::engine
