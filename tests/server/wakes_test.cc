// A connection that any thread names is woken on the I/O thread, and the eventfd is written once for all of them.
#include "glimpse/server/wakes.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <thread>

namespace glimpse::server {
namespace {

class Sleeper : public Peer {
 public:
  void cut() override {}
  void wake() override { ++wakes; }
  int wakes = 0;
};

/// How often the eventfd was written since the last call.
eventfd_t written(const Wakes& wakes) {
  eventfd_t count = 0;
  return eventfd_read(wakes.event_fd(), &count) == 0 ? count : 0;
}

TEST(Wakes, WriteOnceForAllAndForgetWhoIsGone) {
  Wakes wakes;
  EXPECT_EQ(written(wakes), 0u);
  const auto first = std::make_shared<Sleeper>(), second = std::make_shared<Sleeper>();
  wakes.add(first);
  wakes.add(second);
  wakes.add(std::make_shared<Sleeper>());
  EXPECT_EQ(written(wakes), 1u);
  EXPECT_EQ(first->wakes, 0);
  wakes.wake_all();
  EXPECT_EQ(first->wakes, 1);
  EXPECT_EQ(second->wakes, 1);
  wakes.wake_all();
  EXPECT_EQ(first->wakes, 1);
  wakes.add(first);
  EXPECT_EQ(written(wakes), 1u) << "again after wake_all()";
}

TEST(Wakes, NoneIsLostBetweenThreads) {
  constexpr int kThreads = 3, kTimes = 2000;
  Wakes wakes;
  const auto sleeper = std::make_shared<Sleeper>();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kTimes; ++i) wakes.add(sleeper);
    });
  }
  // Sleeps until the eventfd is written: who is added without a write after it would never be woken.
  while (sleeper->wakes < kThreads * kTimes) {
    pollfd ready{wakes.event_fd(), POLLIN, 0};
    if (poll(&ready, 1, 10'000) != 1) break;
    written(wakes);
    wakes.wake_all();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sleeper->wakes, kThreads * kTimes);
}

}  // namespace
}  // namespace glimpse::server
