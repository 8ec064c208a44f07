// A socket with deadlines: bytes in and out, one request at a time, and whether the client is still there. The only
// header here that includes Boost; connection.cc alone includes it. The I/O thread alone.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "glimpse/server/http.h"
#include "glimpse/server/options.h"

namespace glimpse::server {

using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

class Wire {
 public:
  using Clock = std::chrono::steady_clock;
  template <class T>
  using Later = boost::asio::awaitable<T>;

  Wire(boost::asio::ip::tcp::socket socket, const Limits& limits);

  /// From now on reads and writes fail behind so many seconds, whatever comes meanwhile. `owner` keeps this alive.
  void arm(std::int64_t seconds, const std::weak_ptr<void>& owner);
  void disarm();
  bool expired() const { return expired_; }
  /// The client left, or cut() was called.
  bool gone() const { return gone_; }
  void cut();
  void close();

  /// Reads what comes. False: the time is up, or the client left.
  Later<bool> fill();
  bool has_bytes() const { return buffer_.size() > 0; }
  /// False as above. Throw ApiError for what is no HTTP, or over a limit.
  Later<bool> read_head(Parser& parser);
  Later<bool> read_body(Parser& parser);
  /// False: the client left.
  Later<bool> write(std::string bytes);
  /// Writes what the socket takes at once, and takes it off `bytes`: no deadline, no wait. True: that was all.
  bool write_now(std::string& bytes);
  /// Ends what is sent and drops what comes, so that the client can read an answer to a request that was not read
  /// whole.
  Later<void> linger();

  /// Lets wait_news() return.
  void wake();
  Later<void> wait_news(Clock::duration most);

  /// While an answer is made a pending read sees the client leave; what it reads is of the next request.
  void start_watch(std::shared_ptr<void> owner);
  Later<void> stop_watch();

 private:
  std::size_t feed(Parser& parser);
  Later<void> watch(std::shared_ptr<void> owner);
  void stop_operations();

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer deadline_, news_;
  boost::beast::flat_buffer buffer_;  ///< what came and was not read yet
  const Limits& limits_;
  std::int64_t turn_ = 0;  ///< of the deadline
  bool expired_ = false, gone_ = false;
  bool woken_ = false;  ///< since wait_news last returned
  bool watching_ = false, stop_watch_ = false;
};

/// What is known of a request whose headers are there.
HttpHead head_of(const Parser::value_type& request);

}  // namespace glimpse::server
