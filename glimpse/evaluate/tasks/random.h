// Seeded random choices for what is generated. A value; one thread.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>

namespace glimpse::evaluate {

/// The same numbers with any standard library, unlike std::uniform_int_distribution's.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  std::string_view of(std::span<const std::string_view> words) { return words[below(words.size())]; }
  std::string digits(int count) {  // the first is not 0
    std::string text(1, static_cast<char>('1' + below(9)));
    while (static_cast<int>(text.size()) < count) text += static_cast<char>('0' + below(10));
    return text;
  }
  std::string letters(int count) {
    std::string text;
    while (static_cast<int>(text.size()) < count) text += static_cast<char>('A' + below(26));
    return text;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace glimpse::evaluate
