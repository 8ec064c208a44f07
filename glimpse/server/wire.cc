#include "glimpse/server/wire.h"

#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "glimpse/server/api_error.h"

namespace glimpse::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::size_t kReadStep = 64 << 10;
constexpr std::int64_t kMostLingering = 64 << 20;  ///< bytes
constexpr std::chrono::seconds kForever{3600};

ApiError parse_error(const error_code& failed, const Limits& limits) {
  if (failed == http::error::header_limit) {
    return {431,
            fmt::format("the headers have more than {} bytes; send less, or raise --max-headers", limits.header_bytes)};
  }
  if (failed == http::error::body_limit) {
    return {413, fmt::format("the body has more than {} bytes; send less, or raise --max-body", limits.body_bytes)};
  }
  return {400, fmt::format("the request is no HTTP: {}", failed.message())};
}

}  // namespace

Wire::Wire(tcp::socket socket, const Limits& limits)
    : socket_(std::move(socket)), deadline_(socket_.get_executor()), news_(socket_.get_executor()), limits_(limits) {
  error_code ignored;
  socket_.non_blocking(true, ignored);
}

void Wire::stop_operations() {
  error_code ignored;
  socket_.cancel(ignored);
}

void Wire::arm(std::int64_t seconds, const std::weak_ptr<void>& owner) {
  expired_ = false;
  const std::int64_t turn = ++turn_;
  deadline_.expires_after(std::chrono::seconds(seconds));
  deadline_.async_wait([this, owner, turn](const error_code& failed) {
    const auto kept = owner.lock();
    if (failed || kept == nullptr || turn_ != turn) return;
    expired_ = true;
    stop_operations();
  });
}

void Wire::disarm() {
  ++turn_;
  deadline_.cancel();
}

void Wire::cut() {
  gone_ = true;
  stop_operations();
  wake();
}

void Wire::close() {
  disarm();
  error_code ignored;
  // Not close() alone: a child process that renders a template may hold a copy of the socket for a while.
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

Wire::Later<bool> Wire::fill() {
  if (expired_ || gone_) co_return false;
  error_code failed;
  const auto space = buffer_.prepare(kReadStep);
  const std::size_t count = co_await socket_.async_read_some(space, asio::redirect_error(asio::use_awaitable, failed));
  if (failed) co_return false;
  buffer_.commit(count);
  co_return true;
}

std::size_t Wire::feed(Parser& parser) {
  if (buffer_.size() == 0) return 0;
  error_code failed;
  const std::size_t used = parser.put(buffer_.data(), failed);
  buffer_.consume(used);
  if (failed && failed != http::error::need_more) throw parse_error(failed, limits_);
  return used;
}

Wire::Later<bool> Wire::read_head(Parser& parser) {
  for (;;) {
    feed(parser);
    if (parser.is_header_done()) co_return true;
    const bool more = co_await fill();
    if (!more) co_return false;
  }
}

Wire::Later<bool> Wire::read_body(Parser& parser) {
  if (parser.get()[http::field::expect] == "100-continue") {
    error_code ignored;
    constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    co_await asio::async_write(socket_, asio::buffer(kContinue), asio::redirect_error(asio::use_awaitable, ignored));
  }
  parser.eager(true);
  for (;;) {
    const std::size_t used = feed(parser);
    if (parser.is_done()) co_return true;
    if (used > 0) continue;
    // A body's bytes are taken as they come; what is kept is the head of a chunk, or fields behind the last one.
    if (buffer_.size() > static_cast<std::size_t>(limits_.header_bytes)) {
      throw parse_error(http::error::header_limit, limits_);
    }
    const bool more = co_await fill();
    if (!more) co_return false;
  }
}

Wire::Later<bool> Wire::write(std::string bytes) {
  if (expired_ || gone_) co_return false;
  error_code failed;
  co_await asio::async_write(socket_, asio::buffer(bytes), asio::redirect_error(asio::use_awaitable, failed));
  if (failed) gone_ = true;
  co_return !failed;
}

bool Wire::write_now(std::string& bytes) {
  if (gone_) return false;
  error_code failed;  // what cannot be written now is found out by the write that waits
  bytes.erase(0, socket_.write_some(asio::buffer(bytes), failed));
  return bytes.empty();
}

Wire::Later<void> Wire::linger() {
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  for (std::int64_t dropped = 0; dropped < kMostLingering;) {
    const bool more = co_await fill();
    if (!more) break;
    dropped += static_cast<std::int64_t>(buffer_.size());
    buffer_.clear();
  }
}

void Wire::wake() {
  woken_ = true;
  news_.cancel();
}

Wire::Later<void> Wire::wait_news(Clock::duration most) {
  if (!woken_) {
    error_code ignored;
    news_.expires_after(most);
    co_await news_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  woken_ = false;
}

void Wire::start_watch(std::shared_ptr<void> owner) {
  watching_ = true;
  asio::co_spawn(socket_.get_executor(), watch(std::move(owner)), asio::detached);
}

Wire::Later<void> Wire::watch(std::shared_ptr<void> owner) {
  const auto most = static_cast<std::size_t>(limits_.header_bytes);
  while (!stop_watch_ && buffer_.size() < most) {
    error_code failed;
    const auto space = buffer_.prepare(kReadStep);
    const std::size_t count =
        co_await socket_.async_read_some(space, asio::redirect_error(asio::use_awaitable, failed));
    if (failed) {
      if (!stop_watch_) gone_ = true;
      break;
    }
    buffer_.commit(count);
  }
  watching_ = false;
  wake();
  owner.reset();
}

Wire::Later<void> Wire::stop_watch() {
  stop_watch_ = true;
  stop_operations();
  while (watching_) co_await wait_news(kForever);
  stop_watch_ = false;
}

HttpHead head_of(const Parser::value_type& request) {
  const auto text = [&](http::field name) { return std::string(request[name]); };
  HttpHead head;
  head.method = std::string(request.method_string());
  head.target = std::string(request.target());
  if (head.target.starts_with("http://")) {  // as proxies are asked; the Host says the same
    const std::size_t path = head.target.find('/', std::string_view("http://").size());
    head.target = path == std::string::npos ? "/" : head.target.substr(path);
  }
  head.host = text(http::field::host);
  head.origin = text(http::field::origin);
  head.authorization = text(http::field::authorization);
  head.content_type = text(http::field::content_type);
  head.request_id = std::string(request["x-request-id"]);
  head.http_11 = request.version() >= 11;
  head.has_host = request.find(http::field::host) != request.end();
  head.has_origin = request.find(http::field::origin) != request.end();
  return head;
}

}  // namespace glimpse::server
