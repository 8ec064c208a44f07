// How far a calibration or an evaluation is, and whether it goes on. Owns its callback, which may be none; one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

namespace glimpse::evaluate {

/// Thrown where the caller asked to stop; what was given the callback catches it.
struct Stopped {};

class Progress {
 public:
  using Callback = std::function<bool(std::int64_t done, std::int64_t total)>;
  /// What one decoded token is worth in prompt tokens.
  static constexpr std::int64_t kStep = 6;

  Progress(Callback callback, std::int64_t total) : callback_(std::move(callback)), total_(total) {}

  /// Adds work, in prompt tokens; throws Stopped when the caller says so.
  void add(std::int64_t work) {
    done_ = std::min(done_ + work, total_);
    if (callback_ && !callback_(done_, total_)) throw Stopped{};
  }
  /// What comes is a part of the whole that ends here, however much of it was run.
  void reach(std::int64_t done) { done_ = std::clamp(done, done_, total_); }
  std::int64_t done() const { return done_; }
  std::int64_t total() const { return total_; }

 private:
  Callback callback_;
  std::int64_t done_ = 0, total_;
};

}  // namespace glimpse::evaluate
