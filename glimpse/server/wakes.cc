#include "glimpse/server/wakes.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace glimpse::server {

Wakes::Wakes() : event_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (event_fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

Wakes::~Wakes() {
  close(event_fd_);
}

void Wakes::add(std::weak_ptr<Peer> peer) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = added_.empty();
    added_.push_back(std::move(peer));
  }
  // The write of the first one stands for all until they are taken, so the count never comes near what would block.
  if (first) eventfd_write(event_fd_, 1);
}

void Wakes::wake_all() {
  {
    const std::lock_guard lock(mutex_);
    std::swap(added_, woken_);
  }
  for (const std::weak_ptr<Peer>& each : woken_) {
    if (const auto peer = each.lock()) peer->wake();
  }
  woken_.clear();
}

}  // namespace glimpse::server
