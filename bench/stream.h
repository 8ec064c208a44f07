// The bandwidth that everything is measured against: a read of memory that does nothing else. Owns its memory, which is
// several times the last-level cache; parts from any threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "glimpse/base/buffer.h"

namespace glimpse::bench {

class Stream {
 public:
  Stream() : buffer_(kBytes) { std::memset(buffer_.data(), 1, kBytes); }
  static constexpr std::size_t kBytes = std::size_t{256} << 20;
  static constexpr int items() { return static_cast<int>(kBytes / kPart); }
  /// Reads part i of items().
  void run(int i) {
    const auto* words = reinterpret_cast<const std::uint64_t*>(buffer_.data() + static_cast<std::size_t>(i) * kPart);
    std::uint64_t folded[16] = {};
    for (std::size_t w = 0; w < kPart / 8; w += 16) {
      for (std::size_t k = 0; k < 16; ++k) folded[k] ^= words[w + k];
    }
    std::uint64_t all = 0;
    for (const std::uint64_t f : folded) all ^= f;
    sink_.fetch_xor(all, std::memory_order_relaxed);
  }

 private:
  static constexpr std::size_t kPart = std::size_t{1} << 20;
  HostBuffer buffer_;
  std::atomic<std::uint64_t> sink_ = 0;
};

}  // namespace glimpse::bench
