// Bytes of any kind on a connection of the server, which ends by itself: what it answered is HTTP, one answer behind
// the other, each with its error in JSON; anything else is a finding. The server has no model: requests that need one
// are read whole, and refused. The corpus starts from what http_seeds writes.
//
// The last byte of an input says in how many parts it comes.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "glimpse/server/connection.h"
#include "glimpse/server/hub.h"

namespace {

using namespace glimpse::server;

void require(bool holds) {
  if (!holds) std::abort();
}

std::string_view take_line(std::string_view& text) {
  const std::size_t end = text.find("\r\n");
  require(end != std::string_view::npos);
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 2);
  return line;
}

/// Takes one answer. Those to HEAD have a length and no body; what follows tells.
void check_answer(std::string_view& text) {
  const std::string_view status = take_line(text);
  require(status.starts_with("HTTP/1.1 ") && status.size() > 12);
  if (status.starts_with("HTTP/1.1 100")) {
    require(take_line(text).empty());
    return;
  }
  std::size_t length = 0;
  bool json = false;
  for (std::string_view line = take_line(text); !line.empty(); line = take_line(text)) {
    require(line.find(": ") != std::string_view::npos);
    json = json || line == "Content-Type: application/json";
    constexpr std::string_view kLength = "Content-Length: ";
    if (!line.starts_with(kLength)) continue;
    const std::string_view digits = line.substr(kLength.size());
    require(std::from_chars(digits.data(), digits.data() + digits.size(), length).ptr == digits.data() + digits.size());
  }
  if (text.empty() || text.starts_with("HTTP/1.1 ")) return;  // to HEAD
  require(text.size() >= length);
  if (json) require(!nlohmann::json::parse(text.substr(0, length), nullptr, false).is_discarded());
  text.remove_prefix(length);
}

struct Shared {
  Shared() {
    ServerOptions options;
    options.limits.body_bytes = 4096;
    options.limits.header_bytes = 2048;
    options.hosts = {"model.example"};
    options.origins = {"https://page.example"};
    options.api_key = "key";
    hub.emplace(Hub{std::move(options), io, pool, {}, false, 0, {}, {}, {}, {}});
  }
  boost::asio::io_context io{1};
  boost::asio::thread_pool pool{1};
  std::optional<Hub> hub;
};

/// What the connection says to these bytes, behind which the client's side ends.
std::string answer_to(Shared& shared, std::string_view bytes, std::size_t parts) {
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  start_connection(*shared.hub, ends[0], false);
  shared.io.restart();
  const std::size_t step = bytes.size() / parts + 1;
  std::string answer;
  const auto read = [&] {
    char some[4096];
    for (ssize_t count = 0; (count = ::recv(ends[1], some, sizeof some, MSG_DONTWAIT)) > 0;) {
      answer.append(some, static_cast<std::size_t>(count));
    }
  };
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    const std::string_view part = bytes.substr(at, step);
    ::send(ends[1], part.data(), part.size(), MSG_NOSIGNAL);
    shared.io.poll();
    read();
  }
  ::shutdown(ends[1], SHUT_WR);
  while (!shared.hub->peers.empty()) {
    shared.io.restart();
    shared.io.run_one();
    read();
  }
  shared.io.restart();
  shared.io.poll();
  read();
  ::close(ends[1]);
  return answer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Shared shared;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size - 1);
  const std::string answer = answer_to(shared, bytes, data[size - 1] % 8 + 1U);
  for (std::string_view left = answer; !left.empty();) check_answer(left);
  require(shared.hub->jobs == 0 && shared.hub->live.empty());
  return 0;
}
