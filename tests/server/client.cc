#include "tests/server/client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <sstream>
#include <stdexcept>

#include "tests/support/models.h"

namespace glimpse::server {
namespace {

constexpr int kPatience = 120'000;  // milliseconds; a hanging server fails the test instead of stopping it

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

Client::Client() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {}

Client::Client(int port) : Client() {
  connect(port);
}

void Client::receive_little() {
  constexpr int kBytes = 4096, kSegment = 536;
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &kBytes, sizeof kBytes);
  ::setsockopt(socket_, IPPROTO_TCP, TCP_MAXSEG, &kSegment, sizeof kSegment);
}

void Client::connect(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw std::runtime_error("cannot connect");
  }
}

Client::Client(Client&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), buffer_(std::move(other.buffer_)) {}

Client::~Client() {
  close();
}

void Client::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void Client::send(const std::string& bytes) {
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return;  // the answer, or its absence, says why
    sent += static_cast<std::size_t>(count);
  }
}

bool Client::more() {
  pollfd wait{socket_, POLLIN, 0};
  if (::poll(&wait, 1, kPatience) <= 0) throw std::runtime_error("the server says nothing");
  char bytes[65536];
  const ssize_t count = ::recv(socket_, bytes, sizeof bytes, 0);
  if (count > 0) buffer_.append(bytes, static_cast<std::size_t>(count));
  return count > 0;
}

std::string Client::line() {
  std::size_t end = 0;
  while ((end = buffer_.find("\r\n")) == std::string::npos) {
    if (!more()) return {};
  }
  std::string text = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return text;
}

std::string Client::bytes(std::size_t count) {
  while (buffer_.size() < count) {
    if (!more()) break;
  }
  std::string text = buffer_.substr(0, count);
  buffer_.erase(0, text.size());
  return text;
}

bool Client::ended() {
  return buffer_.empty() && !more();
}

Reply Client::read_head() {
  Reply reply;
  std::istringstream status(line());
  std::string version;
  status >> version >> reply.status;
  for (std::string field = line(); !field.empty(); field = line()) {
    const std::size_t colon = field.find(": ");
    reply.fields[lower(field.substr(0, colon))] = field.substr(colon + 2);
  }
  return reply;
}

std::string Client::read_chunk() {
  const std::size_t size = std::stoul(line(), nullptr, 16);
  std::string text = bytes(size);
  line();
  return text;
}

Reply Client::read(bool head) {
  Reply reply = read_head();
  if (head || reply.status == 204 || reply.status == 0) return reply;
  if (reply.fields.contains("content-length")) {
    reply.body = bytes(std::stoul(reply.fields["content-length"]));
  } else if (reply.fields.contains("transfer-encoding")) {
    for (std::string chunk = read_chunk(); !chunk.empty(); chunk = read_chunk()) reply.body += chunk;
  } else {
    while (more()) {
    }
    reply.body = std::exchange(buffer_, {});
  }
  return reply;
}

std::string request_text(const std::string& method, const std::string& path, const std::string& body,
                         const std::string& fields) {
  std::string text = method + " " + path + " HTTP/1.1\r\n";
  if (fields.find("Host:") == std::string::npos) text += "Host: 127.0.0.1\r\n";
  if (!body.empty() && fields.find("Content-Type:") == std::string::npos) text += "Content-Type: application/json\r\n";
  if (!body.empty()) text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  return text + fields + "\r\n" + body;
}

Reply Client::get(const std::string& path, const std::string& fields) {
  send(request_text("GET", path, {}, fields));
  return read();
}

Reply Client::post(const std::string& path, const JsonValue& body, const std::string& fields) {
  send(request_text("POST", path, body.is_string() ? body.get<std::string>() : body.dump(), fields));
  return read();
}

std::vector<std::string> events_of(const std::string& body) {
  std::vector<std::string> events;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("data: ", 0) == 0) events.push_back(line.substr(6));
  }
  return events;
}

Running::Running(ServerOptions options) : server_(std::move(options)), thread_([this] { server_.run(); }) {
  while (get("/health").status != 200) std::this_thread::yield();
}

Running::~Running() {
  join();
}

void Running::join() {
  server_.stop();
  if (thread_.joinable()) thread_.join();
}

double metric_of(Client& client, const std::string& name, const std::string& label) {
  const Reply reply = client.get("/metrics");
  std::istringstream lines(reply.body);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("glimpse:" + name + "{", 0) == 0 && line.find(label) != std::string::npos) {
      return std::stod(line.substr(line.rfind(' ') + 1));
    }
  }
  return 0;
}

double Running::metric(const std::string& name, const std::string& label) const {
  Client own = client();
  return metric_of(own, name, label);
}

void Running::wait_for(const std::string& name, double value, const std::string& label) const {
  while (metric(name, label) != value) std::this_thread::yield();
}

ServerOptions small_options(const std::string& model) {
  ServerOptions options;
  options.engine.model = reference::test_model(model);
  options.engine.kv_type = KvType::f32;
  options.engine.threads = reference::kTestThreads;
  options.port = 0;
  options.running = 4;
  options.model_name = "small";
  return options;
}

}  // namespace glimpse::server
