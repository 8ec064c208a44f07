#include "glimpse/server/watch_sets.h"

#include <algorithm>
#include <iterator>

namespace glimpse::server {

std::string pack_positions(std::span<const std::int32_t> positions) {
  constexpr std::size_t kMostBytes = 5;  // of 33 bits
  std::string packed(kMostBytes * positions.size(), '\0');
  char* out = packed.data();
  std::int64_t before = 0;
  for (const std::int32_t position : positions) {
    const std::int64_t step = position - before;
    before = position;
    std::uint64_t rest = step < 0 ? static_cast<std::uint64_t>(-step) * 2 - 1 : static_cast<std::uint64_t>(step) * 2;
    for (; rest >= 0x80; rest >>= 7) *out++ = static_cast<char>(0x80 | (rest & 0x7f));
    *out++ = static_cast<char>(rest);
  }
  return {packed.data(), out};  // no more memory than it needs: records keep it
}

std::vector<std::int32_t> unpack_positions(std::string_view packed) {
  std::vector<std::int32_t> positions;
  positions.reserve(packed.size());
  std::int64_t position = 0;
  std::uint64_t value = 0;
  unsigned shift = 0;
  for (const char c : packed) {
    const auto byte = static_cast<unsigned char>(c);
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    shift += 7;
    if (byte >= 0x80) continue;
    const auto half = static_cast<std::int64_t>((value + 1) / 2);
    position += value % 2 == 0 ? half : -half;
    positions.push_back(static_cast<std::int32_t>(position));
    value = 0;
    shift = 0;
  }
  return positions;
}

std::vector<std::int32_t> union_of_sets(std::span<const std::vector<std::int32_t>> sets) {
  std::vector<std::int32_t> all;
  for (const std::vector<std::int32_t>& set : sets) {
    std::vector<std::int32_t> merged;
    merged.reserve(all.size() + set.size());
    std::set_union(all.begin(), all.end(), set.begin(), set.end(), std::back_inserter(merged));
    all = std::move(merged);
  }
  return all;
}

std::int64_t bin_width(std::int64_t tokens, std::int64_t bins) {
  std::int64_t width = 1;
  while (width * bins < tokens) width *= 2;
  return width;
}

std::string bin_digits(std::span<const std::int32_t> positions, std::int64_t tokens, std::int64_t width) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  constexpr std::int64_t kAll = 15;
  std::vector<std::int64_t> counts(static_cast<std::size_t>((tokens + width - 1) / width));
  for (const std::int32_t position : positions) ++counts[static_cast<std::size_t>(position / width)];
  std::string digits(counts.size(), '0');
  for (std::size_t bin = 0; bin < counts.size(); ++bin) {
    const std::int64_t size = std::min(width, tokens - static_cast<std::int64_t>(bin) * width);
    const std::int64_t count = counts[bin];
    if (count == 0) continue;
    const std::int64_t share =
        count >= size ? kAll : std::clamp<std::int64_t>((2 * kAll * count + size) / (2 * size), 1, kAll - 1);
    digits[bin] = kDigits[static_cast<std::size_t>(share)];
  }
  return digits;
}

}  // namespace glimpse::server
