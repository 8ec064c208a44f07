#include "glimpse/base/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace glimpse {
namespace {

std::vector<std::byte> random_bytes(std::size_t count) {
  std::mt19937 random(4);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Checksum, DoesNotDependOnTheCuts) {
  const auto bytes = random_bytes(1000);
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    Checksum sum;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t count = std::min<std::size_t>(random() % 150, bytes.size() - at);
      sum.add(std::span(bytes).subspan(at, count));
      at += count;
    }
    ASSERT_EQ(sum.value(), checksum(bytes));
  }
}

TEST(Checksum, EachFlipAndEachLengthIsAnother) {
  std::set<std::uint64_t> seen;
  std::size_t made = 0;
  for (std::size_t length = 0; length <= 200; ++length, ++made) {
    seen.insert(checksum(std::vector<std::byte>(length)));  // zeros, told apart by their number alone
  }
  auto bytes = random_bytes(300);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit, ++made) {
    bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    seen.insert(checksum(bytes));
    bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
  }
  // Two words that change places, in one lane and in two.
  for (const std::size_t apart : {8U, 64U, 72U}) {
    for (std::size_t at = 0; at + apart + 8 <= bytes.size(); at += 8, ++made) {
      auto swapped = bytes;
      std::swap_ranges(swapped.begin() + static_cast<std::ptrdiff_t>(at),
                       swapped.begin() + static_cast<std::ptrdiff_t>(at + 8),
                       swapped.begin() + static_cast<std::ptrdiff_t>(at + apart));
      seen.insert(checksum(swapped));
    }
  }
  EXPECT_EQ(seen.size(), made);
  EXPECT_FALSE(seen.contains(checksum(bytes)));
}

}  // namespace
}  // namespace glimpse
