// The threads of a benchmark or of a calculation. They run one function together, or share out numbered items, and may
// meet inside a function. At a meeting they poll, as libgomp does at first between the nodes of a graph, because waking
// a thread takes longer than a layer's selection. The caller is thread 0. Owned by one caller.
#pragma once

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "glimpse/base/resources.h"

namespace glimpse::evaluate {

class ThreadTeam {
 public:
  /// Throws UserError where the system gives no so many threads.
  explicit ThreadTeam(int threads) : threads_(threads), start_(threads), end_(threads) {
    require_threads(threads - 1);
    others_.reserve(static_cast<std::size_t>(threads));
    for (int i = 1; i < threads; ++i) {
      others_.emplace_back([this, i] {
        for (;;) {
          start_.arrive_and_wait();
          if (work_ == nullptr) return;
          (*work_)(i);
          end_.arrive_and_wait();
        }
      });
    }
  }
  ~ThreadTeam() {
    work_ = nullptr;
    start_.arrive_and_wait();
    for (std::thread& thread : others_) thread.join();
  }
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int threads() const { return threads_; }

  /// work(i) on thread i, for all i; it must not throw.
  void run(const std::function<void(int)>& work) {
    work_ = &work;
    start_.arrive_and_wait();
    work(0);
    end_.arrive_and_wait();
  }

  /// work(i) for all i in [0, count), in order of i as threads become free; it must not throw.
  void share(int count, const std::function<void(int)>& work) {
    next_.store(0, std::memory_order_relaxed);
    run([&](int) {
      for (int i = next_++; i < count; i = next_++) work(i);
    });
  }

  using Clock = std::chrono::steady_clock;

  /// Inside `work`, by every thread equally often: returns when all have come, with the time at which the last came. A
  /// thread that lost its core meanwhile may be late to read the clock itself.
  Clock::time_point meet() {
    const int round = round_.load(std::memory_order_acquire);
    if (come_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      come_.store(0, std::memory_order_relaxed);
      const Clock::time_point now = Clock::now();
      met_[static_cast<std::size_t>(round & 1)] = now;
      round_.store(round + 1, std::memory_order_release);
      return now;
    }
    // Another program may hold the core of the thread that is waited for.
    constexpr int kPatience = 1 << 16;
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
      if (spins > kPatience) std::this_thread::yield();
    }
    return met_[static_cast<std::size_t>(round & 1)];  // nobody can come to the meeting after next before we leave
  }

 private:
  int threads_;
  std::barrier<> start_, end_;
  const std::function<void(int)>* work_ = nullptr;
  alignas(64) std::atomic<int> next_ = 0;
  alignas(64) std::atomic<int> come_ = 0;
  alignas(64) std::atomic<int> round_ = 0;
  std::array<Clock::time_point, 2> met_;  ///< of even and odd rounds
  std::vector<std::thread> others_;
};

/// As team->share(); without a team the caller does it all.
inline void share(ThreadTeam* team, int count, const std::function<void(int)>& work) {
  if (team != nullptr) return team->share(count, work);
  for (int i = 0; i < count; ++i) work(i);
}

}  // namespace glimpse::evaluate
