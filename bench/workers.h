// A fixed set of threads that run one function at a time together; the caller is one of them. Owned by one caller.
#pragma once

#include <atomic>
#include <barrier>
#include <functional>
#include <thread>
#include <vector>

namespace glimpse::bench {

class Workers {
 public:
  explicit Workers(int threads) : start_(threads), end_(threads) {
    for (int i = 1; i < threads; ++i) {
      threads_.emplace_back([this] {
        for (;;) {
          start_.arrive_and_wait();
          if (work_ == nullptr) return;
          drain();
          end_.arrive_and_wait();
        }
      });
    }
  }
  ~Workers() {
    work_ = nullptr;
    start_.arrive_and_wait();
    for (std::thread& thread : threads_) thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// work(i) for all i in [0, count), in order of i as threads become free.
  void run(int count, const std::function<void(int)>& work) {
    work_ = &work;
    count_ = count;
    next_ = 0;
    start_.arrive_and_wait();
    drain();
    end_.arrive_and_wait();
  }

 private:
  void drain() {
    for (int i = next_++; i < count_; i = next_++) (*work_)(i);
  }

  std::barrier<> start_, end_;
  const std::function<void(int)>* work_ = nullptr;
  int count_ = 0;
  std::atomic<int> next_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace glimpse::bench
