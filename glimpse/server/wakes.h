// Any thread says which connections the I/O thread shall wake. asio::post() wakes the I/O thread while it holds a lock
// that this thread then waits for: one sleep more for each token. Here the lock is free before the thread is woken.
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
  int event_fd() const { return event_fd_; }
  /// Wakes those that were added. The I/O thread alone.
  void wake_all();

 private:
  const int event_fd_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<Peer>> added_;
  std::vector<std::weak_ptr<Peer>> woken_;  ///< the I/O thread's, kept for its memory
};

}  // namespace glimpse::server
