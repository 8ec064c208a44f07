// Who is to be woken on the I/O thread, told from any thread. asio::post() would do, but it rings while it holds the
// lock that the I/O thread needs first: each token would cost a sleep and a wake-up more, on both sides. Here the lock
// is free before the bell is rung.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "glimpse/server/hub.h"

namespace glimpse::server {

class Wakes {
 public:
  /// Throws std::system_error where no descriptor is left.
  Wakes();
  ~Wakes();
  Wakes(const Wakes&) = delete;
  Wakes& operator=(const Wakes&) = delete;

  /// Peer::wake() soon, unless it is gone then. Any thread.
  void add(std::weak_ptr<Peer> peer);
  /// An eventfd, which add() writes to.
  int bell() const { return bell_; }
  /// Wakes those that were added. The I/O thread alone.
  void wake_all();

 private:
  const int bell_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<Peer>> added_;
  std::vector<std::weak_ptr<Peer>> woken_;  ///< the I/O thread's, kept for its memory
};

}  // namespace glimpse::server
