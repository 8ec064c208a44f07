// A fast 64-bit checksum against bytes that changed by accident: eight lanes of xor, rotate and odd multiply, each step
// one to one, so that a change within one aligned 8-byte word is always found, and any other but for one in 2^64.
// Not against an adversary. The same value however the bytes were cut into calls. A value; one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace glimpse {

class Checksum {
 public:
  Checksum();
  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;

 private:
  static constexpr std::size_t kLanes = 8, kStride = kLanes * sizeof(std::uint64_t);
  void take(const std::byte* strides, std::size_t count);

  std::array<std::uint64_t, kLanes> lanes_;
  std::array<std::byte, kStride> open_{};  ///< bytes that do not fill a stride yet
  std::size_t open_bytes_ = 0;
  std::uint64_t length_ = 0;
};

std::uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace glimpse
