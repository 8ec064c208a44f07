// The HTTP server: one thread for all sockets, two that read bodies and text, and the one that alone calls the engine
// (engine::Service). docs/server.md says what it answers.
//
//   socket -> connection (I/O thread) -> prepare (pool) -> engine::Service -> engine::Stream -> connection -> socket
//
// Every wait has an end: requests have deadlines, the queues are bounded, and a stream keeps what nobody reads, which
// is at most its own answer. A client that does not read is cut.
#pragma once

#include <memory>

#include "glimpse/server/options.h"

namespace glimpse::server {

class Server {
 public:
  /// Listens; the model is not loaded yet. Throws UserError: an address or port that cannot be had, or one that others
  /// reach without a key.
  explicit Server(ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  /// Loads the model and serves until stop(). Once. Throws what loading throws.
  void run();
  /// Ends run(): answers that are being made end with an error. Any thread.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace glimpse::server
