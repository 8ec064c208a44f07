// What the connections of a server share. The I/O thread alone, but where it says otherwise.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "glimpse/server/answer.h"
#include "glimpse/server/backend.h"
#include "glimpse/server/http.h"
#include "glimpse/server/options.h"
#include "glimpse/server/prepare.h"
#include "glimpse/server/routes.h"
#include "glimpse/server/totals.h"
#include "glimpse/server/watch_list.h"

namespace boost::asio {
class io_context;
class thread_pool;
}  // namespace boost::asio

namespace glimpse::server {

class Wakes;

/// A connection, as the others see it.
class Peer {
 public:
  virtual ~Peer() = default;
  /// Ends it at once, whatever it does.
  virtual void cut() = 0;
  /// Looks again at what it waits for.
  virtual void wake() = 0;

  bool busy = false;             ///< a whole request is being answered
  bool cutting = false;          ///< cut() was called
  engine::TimePoint last_whole;  ///< when the last whole request was there, or the connection began
};

struct Hub {
  const ServerOptions options;
  boost::asio::io_context& io;
  boost::asio::thread_pool& pool;

  std::unique_ptr<const Backend> backend;  ///< null while the model is loaded; then the pool's threads read it, too
  bool stopping = false;
  std::int64_t jobs = 0;  ///< that the pool has
  std::set<std::shared_ptr<Peer>> peers;
  std::map<std::string, std::weak_ptr<Answer>> live;  ///< by the answer's id
  Totals totals;
  WatchList watched;
  /// Answers of one step that are being made or written. A connection's frame may outlive the hub.
  std::shared_ptr<std::int64_t> step_answers = std::make_shared<std::int64_t>(0);
  std::shared_ptr<Wakes> wakes = {};  ///< the Service's wakers have it, too, and may end later

  /// Throws ApiError 503 while the model is loaded, or the server stops.
  const Backend& loaded() const;
  /// Makes room for a connection. False: all are busy.
  bool make_room();
  /// Cuts the one that is longest without a whole request. False: all are busy.
  bool cut_longest();
  std::string fresh_id(std::string_view kind) const;
};

/// The watched request of a path. Throws ApiError 404.
std::shared_ptr<Watched> watched_of(const Hub& hub, std::string_view path);
/// The work of GET /v1/requests/ID/steps/N; it runs in the pool and gives the answer's body. Throws ApiError 404.
std::function<std::string()> step_work(const Hub& hub, std::string_view path);

/// The answer to a GET or DELETE. Throws ApiError.
HttpAnswer answer_now(Hub& hub, Route route, const HttpHead& head);
/// The work of a POST that generates nothing; it runs in the pool and gives the answer's body.
std::function<std::string()> text_work(const Hub& hub, Route route, std::string body);
HttpAnswer answer_of(const ApiError& error, const HttpHead& head);

/// Gives the engine what was prepared, and lists the answer as live. Throws ApiError 429 where the queue is full.
std::shared_ptr<Answer> submit(Hub& hub, Prepared& prepared, const engine::Wake& wake);
/// Takes what the engine has given, and counts what has ended. False: there was nothing.
bool collect(Hub& hub, Answer& answer);
/// Why the answer ends early: its own failure, or that the server stops.
std::optional<ApiError> failure_of(const Hub& hub, const Answer& answer);

}  // namespace glimpse::server
