#include "glimpse/cli/position_list.h"

#include <vector>

namespace glimpse::cli {
namespace {

constexpr unsigned kMostParameter = 15;

/// A Rice code: value >> parameter in unary, ones and a zero, then the low bits.
std::size_t rice_bits(const std::vector<std::uint32_t>& values, unsigned parameter) {
  std::size_t bits = values.size() * (1 + parameter);
  for (const std::uint32_t value : values) bits += value >> parameter;
  return bits;
}

unsigned best_parameter(const std::vector<std::uint32_t>& values) {
  unsigned best = 0;
  for (unsigned parameter = 1; parameter <= kMostParameter; ++parameter) {
    if (rice_bits(values, parameter) < rice_bits(values, best)) best = parameter;
  }
  return best;
}

class BitWriter {
 public:
  explicit BitWriter(std::string& bytes) : bytes_(bytes) {}
  void rice(std::uint32_t value, unsigned parameter) {
    for (std::uint32_t ones = value >> parameter; ones > 0; --ones) bit(1);
    bit(0);
    for (unsigned low = parameter; low > 0; --low) bit((value >> (low - 1)) & 1);
  }

 private:
  void bit(std::uint32_t value) {
    if (free_ == 0) {
      bytes_ += '\0';
      free_ = 8;
    }
    --free_;
    bytes_.back() = static_cast<char>(static_cast<unsigned char>(bytes_.back()) | (value << free_));
  }
  std::string& bytes_;
  unsigned free_ = 0;
};

}  // namespace

std::string encode_positions(std::span<const std::int32_t> positions) {
  std::vector<std::uint32_t> gaps, lengths;  // a length is less 1
  std::int32_t end = 0;
  for (const std::int32_t position : positions) {
    if (position == end && !gaps.empty()) {
      ++lengths.back();
    } else {
      gaps.push_back(static_cast<std::uint32_t>(position - end));
      lengths.push_back(0);
    }
    end = position + 1;
  }
  std::string bytes;
  for (std::size_t count = gaps.size();; count >>= 7) {
    bytes += static_cast<char>((count & 0x7f) | (count > 0x7f ? 0x80 : 0));
    if (count <= 0x7f) break;
  }
  const unsigned gap_parameter = best_parameter(gaps), length_parameter = best_parameter(lengths);
  bytes += static_cast<char>(gap_parameter << 4 | length_parameter);
  BitWriter writer(bytes);
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    writer.rice(gaps[i], gap_parameter);
    writer.rice(lengths[i], length_parameter);
  }
  return bytes;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      group = group << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += i + j <= bytes.size() ? kDigits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

}  // namespace glimpse::cli
