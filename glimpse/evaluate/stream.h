// The bandwidth that benchmarks are measured against: a read of memory that does nothing else. Owns its memory, which
// is several times the last-level cache. One caller.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "glimpse/base/buffer.h"
#include "glimpse/evaluate/thread_team.h"

namespace glimpse::evaluate {

class Stream {
 public:
  Stream() : buffer_(kBytes) { std::memset(buffer_.data(), 1, kBytes); }
  static constexpr std::size_t kBytes = std::size_t{256} << 20;

  /// Bytes per second that all threads of the team read now. Leaves the caches cold.
  double bandwidth(ThreadTeam& team) {
    const auto start = ThreadTeam::Clock::now();
    team.share(static_cast<int>(kBytes / kPart), [&](int i) { read(i); });
    return static_cast<double>(kBytes) / std::chrono::duration<double>(ThreadTeam::Clock::now() - start).count();
  }

 private:
  static constexpr std::size_t kPart = std::size_t{1} << 20;

  void read(int i) {
    const auto* words = reinterpret_cast<const std::uint64_t*>(buffer_.data() + static_cast<std::size_t>(i) * kPart);
    std::uint64_t folded[16] = {};
    for (std::size_t w = 0; w < kPart / 8; w += 16) {
      for (std::size_t k = 0; k < 16; ++k) folded[k] ^= words[w + k];
    }
    std::uint64_t all = 0;
    for (const std::uint64_t f : folded) all ^= f;
    sink_.fetch_xor(all, std::memory_order_relaxed);
  }

  HostBuffer buffer_;
  std::atomic<std::uint64_t> sink_ = 0;
};

}  // namespace glimpse::evaluate
