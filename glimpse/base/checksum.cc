#include "glimpse/base/checksum.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace glimpse {
namespace {

// Odd, with bits all over: the golden ratio's, and two primes.
constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15, kFold = 0xc2b2ae3d27d4eb4f, kEnd = 0x165667b19e3779f9;

}  // namespace

Checksum::Checksum() {
  for (std::size_t i = 0; i < kLanes; ++i) lanes_[i] = (i + 1) * kFold;
}

void Checksum::take(const std::byte* strides, std::size_t count) {
  std::array<std::uint64_t, kLanes> lanes = lanes_;
  for (; count > 0; --count, strides += kStride) {
    for (std::size_t i = 0; i < kLanes; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, strides + i * sizeof(word), sizeof(word));
      // The shift: a product passes its highest bit on alone, and a flip of one bit in the next word would cancel that.
      lanes[i] = (lanes[i] ^ word) * kStep;
      lanes[i] ^= lanes[i] >> 32;
    }
  }
  lanes_ = lanes;
}

void Checksum::add(std::span<const std::byte> bytes) {
  length_ += bytes.size();
  if (open_bytes_ > 0) {
    const std::size_t count = std::min(bytes.size(), kStride - open_bytes_);
    std::copy_n(bytes.begin(), count, open_.begin() + static_cast<std::ptrdiff_t>(open_bytes_));
    open_bytes_ += count;
    bytes = bytes.subspan(count);
    if (open_bytes_ < kStride) return;
    take(open_.data(), 1);
    open_bytes_ = 0;
  }
  take(bytes.data(), bytes.size() / kStride);
  const std::span<const std::byte> rest = bytes.subspan(bytes.size() / kStride * kStride);
  std::copy(rest.begin(), rest.end(), open_.begin());
  open_bytes_ = rest.size();
}

std::uint64_t Checksum::value() const {
  Checksum whole = *this;
  if (open_bytes_ > 0) {
    std::fill(whole.open_.begin() + static_cast<std::ptrdiff_t>(open_bytes_), whole.open_.end(), std::byte{0});
    whole.take(whole.open_.data(), 1);
  }
  std::uint64_t sum = length_ * kStep;
  for (const std::uint64_t lane : whole.lanes_) {
    sum = (std::rotl(sum, 23) ^ lane) * kFold;
    sum ^= sum >> 32;
  }
  sum = (sum ^ (sum >> 32)) * kEnd;
  return sum ^ (sum >> 29);
}

std::uint64_t checksum(std::span<const std::byte> bytes) {
  Checksum sum;
  sum.add(bytes);
  return sum.value();
}

}  // namespace glimpse
