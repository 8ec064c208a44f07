#include "glimpse/server/connection.h"

#include <fmt/format.h>

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "glimpse/base/log.h"
#include "glimpse/server/answer_json.h"
#include "glimpse/server/guard.h"
#include "glimpse/server/prepare.h"
#include "glimpse/server/wakes.h"
#include "glimpse/server/watch_events.h"
#include "glimpse/server/wire.h"

namespace glimpse::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Clock = Wire::Clock;
template <class T>
using Later = Wire::Later<T>;

constexpr std::int64_t kLingerSeconds = 2;
constexpr std::chrono::seconds kLook{1};  ///< a viewer looks again at the latest

class Connection : public Peer, public std::enable_shared_from_this<Connection> {
 public:
  Connection(Hub& hub, tcp::socket socket) : hub_(hub), wire_(std::move(socket), hub.options.limits) {
    last_whole = Clock::now();
  }

  void cut() override {
    cutting = true;
    wire_.cut();
  }
  void wake() override {
    told_->store(false);
    wire_.wake();
  }

  Later<void> run() {
    const auto self = shared_from_this();
    try {
      co_await serve();
    } catch (const std::exception& error) {  // memory is short, or a bug: this connection ends, the others go on
      log_message(LogLevel::warning, fmt::format("a connection ends: {}", error.what()));
    }
    wire_.close();
    hub_.peers.erase(self);
  }

 private:
  void arm(std::int64_t seconds) { wire_.arm(seconds, weak_from_this()); }

  Later<void> serve() {
    for (bool first = true, keep = true; keep; first = false) {
      if (!first && !wire_.has_bytes()) {
        arm(hub_.options.limits.idle_s);
        const bool more = co_await wire_.fill();
        if (!more) break;
      }
      keep = co_await exchange();
      busy = false;
      if (hub_.stopping || wire_.gone()) break;
    }
  }

  // ---- One request and its answer. What returns false ends the connection.

  Later<bool> exchange() {
    Parser parser;
    parser.header_limit(static_cast<std::uint32_t>(hub_.options.limits.header_bytes));
    parser.body_limit(static_cast<std::uint64_t>(hub_.options.limits.body_bytes));
    std::optional<ApiError> refused;
    std::optional<HttpAnswer> ready;
    HttpHead head;
    Route route = Route::health;
    try {
      arm(hub_.options.limits.header_s);
      const bool there = co_await wire_.read_head(parser);
      if (!there) {
        if (!wire_.expired() || !wire_.has_bytes()) co_return false;
        throw ApiError(408, "the headers came too slowly");
      }
      head = head_of(parser.get());
      check_origin(head, hub_.options);
      if (head.method == "OPTIONS") {
        ready = preflight(head);
      } else {
        route = route_of(head);
        check_key(head, route, hub_.options);
        if (head.method == "POST") check_content(head);
      }
      if (!parser.is_done()) {
        arm(hub_.options.limits.body_s);
        const bool complete = co_await wire_.read_body(parser);
        if (!complete) {
          if (!wire_.expired()) co_return false;
          throw ApiError(408, "the body came too slowly");
        }
      }
    } catch (const ApiError& error) {
      refused = error;
    }
    wire_.disarm();
    if (wire_.expired()) ++hub_.totals.timed_out;
    const bool whole = parser.is_done();
    const bool keep = whole && parser.get().keep_alive() && !hub_.stopping;
    busy = whole && !refused;  // an error is soon told, and who does not read it may be cut
    if (whole) last_whole = Clock::now();
    if (refused) ready = answer_of(*refused, head);
    bool written = false;
    if (ready) {
      written = co_await send(std::move(*ready), head, keep);
      if (written && !whole) {
        arm(kLingerSeconds);
        co_await wire_.linger();
      }
    } else if (head.method == "POST") {
      written = co_await post(head, route, std::move(parser.get().body()), keep);
    } else if (route == Route::request_events && head.method == "GET") {
      written = co_await watch(head, keep);
    } else if (route == Route::request_step) {
      written = co_await one_step(head, keep);
    } else {
      written = co_await send(now(route, head), head, keep);
    }
    co_return written&& keep && !hub_.stopping;
  }

  HttpAnswer now(Route route, const HttpHead& head) {
    try {
      return answer_now(hub_, route, head);
    } catch (...) {
      return answer_of(error_of(std::current_exception()), head);
    }
  }

  Later<bool> post(const HttpHead& head, Route route, std::string body, bool keep) {
    wire_.start_watch(shared_from_this());
    bool written = false;
    if (route == Route::chat || route == Route::completions) {
      written = co_await generate(head, route, std::move(body), keep);
    } else {
      const Ask ask = [&] { return text_work(hub_, route, std::move(body)); };
      written = co_await pool_answer(head, ask, keep);
    }
    co_await wire_.stop_watch();
    co_return written;
  }

  Later<bool> write(std::string bytes) {
    arm(hub_.options.limits.write_s);
    const bool written = co_await wire_.write(std::move(bytes));
    if (wire_.expired()) ++hub_.totals.timed_out;
    wire_.disarm();
    co_return written;
  }
  Later<bool> send(HttpAnswer answer, const HttpHead& head, bool keep) {
    finish_fields(answer, head);
    std::string bytes = head_text(answer, {.keep = keep});
    if (head.method != "HEAD") bytes += answer.body;
    const bool written = co_await write(std::move(bytes));
    co_return written;
  }
  void finish_fields(HttpAnswer& answer, const HttpHead& head) {
    ++hub_.totals.answers[answer.status];
    add_cors(answer, head, hub_.options);
    const std::string_view echo = echo_of(head.request_id);
    answer.fields.emplace_back("x-request-id", echo.empty() ? hub_.fresh_id("req") : std::string(echo));
  }

  // ---- Work in the pool.

  struct Job {
    std::function<void()> work;
    std::exception_ptr thrown;
    bool done = false;
  };

  /// False: the client left meanwhile. Throws what the work throws, and ApiError 503 where too much waits.
  Later<bool> in_pool(std::function<void()> work) {
    if (hub_.jobs >= hub_.options.limits.waiting) throw ApiError(503, "too many requests are being read; try again");
    const bool there = co_await surely_in_pool(std::move(work));
    co_return there;
  }

  /// The same for work of a request that runs, however much waits.
  Later<bool> surely_in_pool(std::function<void()> work) {
    ++hub_.jobs;
    auto job = std::make_shared<Job>();
    job->work = std::move(work);
    // What is shared goes back to the I/O thread with the result: nothing of a connection ends on another thread.
    asio::post(hub_.pool, [self = shared_from_this(), job]() mutable {
      try {
        job->work();
      } catch (...) {
        job->thrown = std::current_exception();
      }
      asio::io_context& io = self->hub_.io;
      asio::post(io, [self = std::move(self), job = std::move(job)] {
        --self->hub_.jobs;
        job->done = true;
        self->wake();
      });
    });
    while (!job->done && !wire_.gone()) co_await wire_.wait_news(hub_.options.ping);
    if (!job->done) co_return false;
    if (job->thrown) std::rethrow_exception(job->thrown);
    co_return true;
  }

  using Ask = std::function<std::function<std::string()>()>;

  /// `ask` gives the work that makes the body; it may throw instead.
  Later<bool> pool_answer(const HttpHead& head, const Ask& ask, bool keep) {
    HttpAnswer made;
    try {
      const auto text = std::make_shared<std::string>();
      std::function<void()> work = [make = ask(), text] { *text = make(); };
      const bool there = co_await in_pool(std::move(work));
      if (!there) co_return false;
      made.body = std::move(*text);
    } catch (...) {
      made = answer_of(error_of(std::current_exception()), head);
    }
    const bool written = co_await send(std::move(made), head, keep);
    co_return written;
  }

  /// Counts an answer of one step for as long as this lives.
  struct StepAnswer {
    explicit StepAnswer(std::shared_ptr<std::int64_t> of) : count(std::move(of)) { ++*count; }
    ~StepAnswer() { --*count; }
    StepAnswer(const StepAnswer&) = delete;
    StepAnswer& operator=(const StepAnswer&) = delete;
    std::shared_ptr<std::int64_t> count;
  };

  /// Its text is many times what is kept of it, so few are there at a time, from their making to their last byte.
  Later<bool> one_step(const HttpHead& head, bool keep) {
    const std::int64_t most = hub_.options.limits.viewers;
    bool written = false;
    if (*hub_.step_answers >= most) {
      const ApiError error(429,
                           fmt::format("{} steps are being read, as many as --max-viewers allows; try again", most));
      written = co_await send(answer_of(error, head), head, keep);
      co_return written;
    }
    const StepAnswer counted(hub_.step_answers);
    const Ask ask = [&] { return step_work(hub_, head.path()); };
    written = co_await pool_answer(head, ask, keep);
    co_return written;
  }

  // ---- Generation.

  /// Called on the Service's thread: one message to the I/O thread for all events that it has not looked at.
  engine::Wake waker() {
    return [weak = weak_from_this(), told = told_, wakes = hub_.wakes] {
      if (!told->exchange(true)) wakes->add(weak);
    };
  }

  Later<bool> generate(const HttpHead& head, Route route, std::string body, bool keep) {
    std::shared_ptr<Answer> answer;
    std::optional<ApiError> failure;
    bool streams = false;
    try {
      const auto prepared = std::make_shared<Prepared>();
      const FieldPlace place = route == Route::chat ? kInChat : kInCompletion;
      std::function<void()> work = [&backend = hub_.loaded(), &limits = hub_.options.limits, prepared, place,
                                    text = std::move(body)] { *prepared = prepare(text, place, backend, limits); };
      const bool there = co_await in_pool(std::move(work));
      if (!there) co_return false;
      streams = prepared->stream;
      answer = submit(hub_, *prepared, waker());
    } catch (...) {
      failure = error_of(std::current_exception());
    }
    bool written = false;
    if (failure) {
      written = co_await send(answer_of(*failure, head), head, keep);
      co_return written;
    }
    if (streams) {
      written = co_await stream_answer(head, answer, keep);
    } else {
      written = co_await whole_answer(head, answer, keep);
    }
    hub_.live.erase(answer->head().id);
    co_return written;
  }

  /// Waits for what the engine gives. False: the client left.
  Later<bool> more_of(Answer& answer) {
    co_await wire_.wait_news(hub_.options.ping);
    collect(hub_, answer);
    co_return !wire_.gone();
  }

  using Told = std::string (Answer::*)();

  /// What it says, made in the pool where that may take long. Empty: the client left.
  Later<std::optional<std::string>> text_of(const std::shared_ptr<Answer>& answer, Told told) {
    if (!answer->reads_text()) co_return ((*answer).*told)();
    const auto text = std::make_shared<std::string>();
    std::function<void()> work = [answer, told, text] { *text = ((*answer).*told)(); };
    const bool there = co_await surely_in_pool(std::move(work));
    if (!there) co_return std::nullopt;
    co_return std::move(*text);
  }

  Later<bool> whole_answer(const HttpHead& head, const std::shared_ptr<Answer>& held, bool keep) {
    Answer& answer = *held;
    while (!answer.ended() && !failure_of(hub_, answer)) {
      const bool there = co_await more_of(answer);
      if (!there) co_return false;
    }
    const std::optional<ApiError> failure = failure_of(hub_, answer);
    HttpAnswer made;
    if (failure) {
      made = answer_of(*failure, head);
    } else {
      std::optional<std::string> text = co_await text_of(held, &Answer::whole);
      if (!text) co_return false;
      made.body = std::move(*text);
    }
    const bool written = co_await send(std::move(made), head, keep);
    co_return written;
  }

  Later<bool> stream_answer(const HttpHead& head, const std::shared_ptr<Answer>& held, bool keep) {
    Answer& answer = *held;
    auto ping = Clock::now() + hub_.options.ping;
    // What is refused before anything was sent is a plain answer.
    while (!answer.begun() && !failure_of(hub_, answer) && Clock::now() < ping) {
      const bool there = co_await more_of(answer);
      if (!there) co_return false;
    }
    bool written = false;
    if (const auto failure = failure_of(hub_, answer)) {
      written = co_await send(answer_of(*failure, head), head, keep);
      co_return written;
    }
    const bool chunked = head.http_11;
    std::string bytes = stream_head(head, keep);
    for (bool over = false; !over;) {
      std::optional<std::string> made = co_await text_of(held, &Answer::events);
      if (!made) co_return false;
      std::string events = std::move(*made);
      const auto failure = failure_of(hub_, answer);
      over = answer.ended() || failure.has_value();
      if (failure && !answer.failure()) events += event_text(error_json(*failure)) + event_text("[DONE]");
      if (events.empty() && Clock::now() >= ping) events = ":\n\n";
      if (!events.empty()) {
        ping = Clock::now() + hub_.options.ping;
        bytes += chunked ? chunk_text(events) : events;
      }
      if (over && chunked) bytes += chunk_text({});
      written = bytes.empty() || wire_.write_now(bytes);
      if (!written) written = co_await write(std::exchange(bytes, {}));
      if (!written) co_return false;
      if (over) break;
      if (answer.reads_text() && collect(hub_, answer)) continue;  // it came while the pool worked
      const bool there = co_await more_of(answer);
      if (!there) co_return false;
    }
    co_return chunked;
  }

  /// Status line and fields of a stream of events; HTTP/1.0 has no chunks.
  std::string stream_head(const HttpHead& head, bool keep) {
    HttpAnswer made{200, "text/event-stream", {}, {{"Cache-Control", "no-store"}, {"X-Accel-Buffering", "no"}}};
    finish_fields(made, head);
    return head_text(made, {.keep = keep && head.http_11, .end = head.http_11 ? BodyEnd::chunk : BodyEnd::connection});
  }

  // ---- What a request reads, to a viewer.

  /// Among a watched request's viewers, for as long as this lives.
  class Seat {
   public:
    Seat(std::shared_ptr<Watched> watched, Peer& viewer) : watched_(std::move(watched)), viewer_(viewer) {
      watched_->viewers.insert(&viewer_);
    }
    ~Seat() { watched_->viewers.erase(&viewer_); }
    Seat(const Seat&) = delete;
    Seat& operator=(const Seat&) = delete;

   private:
    std::shared_ptr<Watched> watched_;
    Peer& viewer_;
  };

  Later<bool> watch(const HttpHead& head, bool keep) {
    std::shared_ptr<Watched> watched;
    std::optional<ApiError> refused;
    ViewerWish wish;
    try {
      watched = watched_of(hub_, head.path());
      wish = viewer_wish(head.target);
      const std::int64_t most = hub_.options.limits.viewers;
      if (hub_.watched.viewers() >= most) {
        throw ApiError(429, fmt::format("{} viewers watch, as many as --max-viewers allows; try again later", most));
      }
    } catch (const ApiError& error) {
      refused = error;
    }
    bool written = false;
    if (refused) {
      written = co_await send(answer_of(*refused, head), head, keep);
      co_return written;
    }
    const Seat seat(watched, *this);
    wire_.start_watch(shared_from_this());
    Viewer viewer(watched->id, watched->record, wish);
    written = co_await show(head, viewer, keep);
    co_await wire_.stop_watch();
    co_return written;
  }

  Later<bool> show(const HttpHead& head, Viewer& viewer, bool keep) {
    const bool chunked = head.http_11;
    std::string bytes = stream_head(head, keep);
    auto ping = Clock::now() + hub_.options.ping;
    bool waited = false;
    for (bool over = false; !over;) {
      std::string events = viewer.events();
      over = viewer.ended();
      if (hub_.stopping && !over) {
        events += event_text(error_json(ApiError(503, "the server is stopping"))) + event_text("[DONE]");
        over = true;
      }
      const bool idle = events.empty();
      if (idle && Clock::now() >= ping) events = ":\n\n";
      if (!events.empty()) {
        ping = Clock::now() + hub_.options.ping;
        bytes += chunked ? chunk_text(events) : events;
      }
      if (over && chunked) bytes += chunk_text({});
      if (!bytes.empty()) {
        // What a step brings is written at once; of a long record others have their turn between two pieces.
        bool written = waited && wire_.write_now(bytes);
        if (!written) written = co_await write(std::exchange(bytes, {}));
        if (!written) co_return false;
      }
      // The request's own connection wakes its viewers; one that waits for a client of its own may do so late.
      waited = idle && !over;
      if (waited) co_await wire_.wait_news(kLook);
      if (wire_.gone()) co_return false;
    }
    co_return chunked;
  }

  Hub& hub_;
  Wire wire_;
  const std::shared_ptr<std::atomic<bool>> told_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace

void start_connection(Hub& hub, int socket, bool version_6) {
  tcp::socket own(hub.io, version_6 ? tcp::v6() : tcp::v4(), socket);
  boost::system::error_code ignored;
  own.set_option(tcp::no_delay(true), ignored);
  const auto connection = std::make_shared<Connection>(hub, std::move(own));
  hub.peers.insert(connection);
  asio::co_spawn(hub.io, connection->run(), asio::detached);
}

}  // namespace glimpse::server
