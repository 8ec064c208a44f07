// A blocking HTTP/1.1 client that shares no code with the server, and a server of the small model beside it. One
// thread.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "glimpse/server/server.h"

namespace glimpse::server {

using JsonValue = nlohmann::json;

struct Reply {
  int status = 0;                             ///< 0: the connection ended before an answer
  std::map<std::string, std::string> fields;  ///< names in lower case
  std::string body;
  JsonValue json() const { return JsonValue::parse(body); }
};

/// One connection. What it is asked to send goes out whole.
class Client {
 public:
  Client();  ///< not connected yet
  explicit Client(int port);
  ~Client();
  Client(Client&& other) noexcept;
  Client& operator=(Client&&) = delete;

  /// Before connect(): of what the server sends and nobody reads sockets hold little. Buffers grow with segments.
  void receive_little();
  void connect(int port);
  void send(const std::string& bytes);
  /// The next answer; `head`: without a body, as HEAD's.
  Reply read(bool head = false);
  /// More of a chunked answer than read_head() gave; empty at its end.
  Reply read_head();
  std::string read_chunk();
  /// True when the server has closed the connection.
  bool ended();
  void close();

  Reply get(const std::string& path, const std::string& fields = {});
  Reply post(const std::string& path, const JsonValue& body, const std::string& fields = {});

 private:
  bool more();
  std::string line();
  std::string bytes(std::size_t count);
  int socket_ = -1;
  std::string buffer_;
};

std::string request_text(const std::string& method, const std::string& path, const std::string& body = {},
                         const std::string& fields = {});

/// The `data:` of server-sent events, in order; comments are left out.
std::vector<std::string> events_of(const std::string& body);

/// A line of /metrics by its name and what is in its label.
double metric_of(Client& client, const std::string& name, const std::string& label = {});

/// Serves the small model on a free port until it is destroyed.
class Running {
 public:
  explicit Running(ServerOptions options);
  ~Running();
  Client client() const { return Client(server_.port()); }
  int port() const { return server_.port(); }
  /// "http://127.0.0.1:PORT/"
  std::string address() const { return "http://127.0.0.1:" + std::to_string(server_.port()) + "/"; }
  Reply post(const std::string& path, const JsonValue& body) const { return client().post(path, body); }
  Reply get(const std::string& path) const { return client().get(path); }
  double metric(const std::string& name, const std::string& label = {}) const;
  /// Waits until the metric has this value.
  void wait_for(const std::string& name, double value, const std::string& label = {}) const;
  void stop() { server_.stop(); }
  void join();

 private:
  Server server_;
  std::thread thread_;
};

/// Options for the small model: one thread, f32.
ServerOptions small_options(const std::string& model = "llama");

}  // namespace glimpse::server
