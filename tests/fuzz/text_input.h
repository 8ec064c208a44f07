// How the bytes of a fuzzed input describe a tokenizer and a text: the first names the pre-tokenizer, then come runs of
// one unit, of up to 200,000, and raw bytes. So a few bytes reach what recurses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace glimpse::fuzz {

constexpr std::string_view kUnits[] = {"a",
                                       "A",
                                       "z",
                                       "0",
                                       "7",
                                       " ",
                                       "\n",
                                       "\r\n",
                                       "\t",
                                       "!",
                                       "'",
                                       "/",
                                       ".",
                                       "<",
                                       "$",
                                       "a ",
                                       "Ab",
                                       "1,",
                                       "'s ",
                                       "! ",
                                       "\u6587",
                                       "\uac00",
                                       "\u0e01",
                                       "\u0627 ",
                                       "\u0301",
                                       "a\u0301",
                                       "\u00a0",
                                       "\u3000",
                                       "\uff0c",
                                       "\u3001",
                                       "\u2026",
                                       "\ue001",
                                       "\x01",
                                       "\U0001F600",
                                       "\u00bd",
                                       "\u01c5",
                                       "\U000F0000",
                                       "\u2581",
                                       "<|im_start|>",
                                       "<|im_start",
                                       "<think>",
                                       "hello ",
                                       "the ",
                                       "<sentinel:1>",
                                       "\u304b",
                                       "\u00b5"};
constexpr std::size_t kLengths[] = {1, 2, 3, 4, 7, 8, 31, 64, 255, 257, 1000, 1024, 4000, 20000, 60000, 200000};
constexpr std::size_t kMostBytes = 250'000;
/// From this byte on a byte says how many raw bytes follow.
constexpr std::uint8_t kRaw = 240;

inline std::string described_text(std::span<const std::uint8_t> input) {
  std::string text;
  for (std::size_t i = 0; i + 1 < input.size() && text.size() < kMostBytes;) {
    const std::uint8_t code = input[i++];
    if (code >= kRaw) {
      for (std::size_t left = code - kRaw + 1u; left > 0 && i < input.size(); --left) {
        text += static_cast<char>(input[i++]);
      }
      continue;
    }
    const std::string_view unit = kUnits[code % std::size(kUnits)];
    const std::size_t length = kLengths[input[i++] % std::size(kLengths)];
    for (std::size_t n = 0; n < length && text.size() < kMostBytes; ++n) text += unit;
  }
  return text;
}

}  // namespace glimpse::fuzz
