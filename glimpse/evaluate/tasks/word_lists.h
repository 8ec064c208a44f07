// RULER's two tasks that count words (Hsieh et al., 2024, section 3.3): their text and what they want, for a size.
// Functions of their arguments; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace glimpse::evaluate {

struct WordList {
  std::string text;
  std::vector<std::string> wanted;  ///< the most frequent first, or all equally frequent
};

/// Words of the answer of common_words.
inline constexpr int kCommonWords = 10;
/// A numbered list, "1. apple 2. river ...": ten words thirty times each and `others` words three times each; a short
/// one six times and once. Where the vocabulary ends, two of its words are joined.
WordList common_words(std::int64_t others, bool is_short, std::uint64_t seed);

/// Words of the answer of frequent_words.
inline constexpr int kFrequentWords = 3;
/// Coded words of six letters, of which the one at rank k comes words / (zeta(2) k^2) times, rounded down. Rank 1 is
/// "...", which does not count; ranks 2 to 4 are wanted.
WordList frequent_words(std::int64_t words, std::int64_t ranks, std::uint64_t seed);

}  // namespace glimpse::evaluate
