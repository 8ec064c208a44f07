#include "glimpse/engine/stream_ticket.h"

#include "glimpse/base/error.h"

namespace glimpse::engine {

StreamEvent Stream::Ticket::take() {
  const auto out = [](std::optional<StreamEvent>& place) {
    StreamEvent event = std::move(*place);
    place.reset();
    return event;
  };
  if (started) return out(started);
  // A prompt that is prefilled anew has its progress behind tokens.
  if (prefill && (tokens.empty() || prefill->at <= tokens.front().at)) return out(prefill);
  if (!tokens.empty()) {
    StreamEvent event;
    event.kind = StreamEvent::Kind::tokens;
    event.at = tokens.back().at;
    event.tokens = std::exchange(tokens, {});
    event.prompt_logprobs = std::exchange(prompt_logprobs, {});
    event.text = std::exchange(text, {});
    return event;
  }
  closed = true;
  finished->text = std::exchange(text, {});
  return out(finished);
}

Stream& Stream::operator=(Stream&& other) noexcept {
  if (this == &other) return *this;
  if (ticket_) ticket_->cancel();
  ticket_ = std::move(other.ticket_);
  return *this;
}

Stream::~Stream() {
  if (ticket_) ticket_->cancel();
}

Stream::Ticket& Stream::ticket() const {
  if (!ticket_) throw UserError("the stream was moved from; read the one that it was moved to");
  return *ticket_;
}

std::optional<StreamEvent> Stream::next() {
  Ticket& own = ticket();
  std::unique_lock lock(own.mutex);
  if (own.closed) return std::nullopt;
  own.news.wait(lock, [&] { return own.has_event(); });
  return own.take();
}

std::optional<StreamEvent> Stream::next(std::chrono::nanoseconds timeout) {
  constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24 * 365);
  Ticket& own = ticket();
  std::unique_lock lock(own.mutex);
  if (own.closed) return std::nullopt;
  if (own.has_event()) return own.take();
  // Not a timed wait of no time: the system would sleep until its timer's next tick.
  if (timeout <= std::chrono::nanoseconds(0)) return std::nullopt;
  if (!own.news.wait_for(lock, std::min(timeout, kLongest), [&] { return own.has_event(); })) return std::nullopt;
  return own.take();
}

bool Stream::ended() const {
  Ticket& own = ticket();
  const std::lock_guard lock(own.mutex);
  return own.closed;
}

void Stream::cancel() const {
  ticket().cancel();
}

}  // namespace glimpse::engine
