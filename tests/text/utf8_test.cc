#include "glimpse/text/utf8.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "support.h"

namespace glimpse::text {
namespace {

/// Whether `bytes` is one whole character, by decoding it: an independent reading of RFC 3629.
bool is_character(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])); };
  for (std::size_t i = 1; i < bytes.size(); ++i) {
    if (at(i) >> 6 != 2) return false;
  }
  std::uint32_t point = 0;
  switch (bytes.size()) {
    case 1:
      return at(0) < 0x80;
    case 2:
      if (at(0) >> 5 != 6) return false;
      return ((at(0) & 31) << 6 | (at(1) & 63)) >= 0x80;
    case 3:
      if (at(0) >> 4 != 14) return false;
      point = (at(0) & 15) << 12 | (at(1) & 63) << 6 | (at(2) & 63);
      return point >= 0x800 && (point < 0xD800 || point > 0xDFFF);
    case 4:
      if (at(0) >> 3 != 30) return false;
      point = (at(0) & 7) << 18 | (at(1) & 63) << 12 | (at(2) & 63) << 6 | (at(3) & 63);
      return point >= 0x10000 && point <= 0x10FFFF;
    default:
      return false;
  }
}

/// Whether some bytes after `bytes` make it one character.
bool begins_character(std::string_view bytes) {
  if (bytes.size() >= 4) return false;
  for (int byte = 0x80; byte < 0xC0; ++byte) {
    const std::string longer = std::string(bytes) + static_cast<char>(byte);
    if (is_character(longer) || begins_character(longer)) return true;
  }
  return false;
}

/// The whole stream at once: characters as they are, each longest head of a character that breaks off as one U+FFFD.
std::string brute_force(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    std::size_t taken = 0;
    for (std::size_t n = 1; n <= 4 && n <= bytes.size() && taken == 0; ++n) {
      if (is_character(bytes.substr(0, n))) taken = n;
    }
    if (taken > 0) {
      out += bytes.substr(0, taken);
    } else {
      taken = 1;
      while (taken < bytes.size() && begins_character(bytes.substr(0, taken + 1))) ++taken;
      out += "\uFFFD";
    }
    bytes.remove_prefix(taken);
  }
  return out;
}

TEST(Utf8, HeadsOfAllShortSequencesAgreeWithDecoding) {
  // All pairs, and all triples and fours with the second byte free and the rest at the borders.
  const unsigned char tails[] = {0x00, 0x7F, 0x80, 0xBF, 0xC0, 0xFF};
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      for (const unsigned char c : tails) {
        for (const unsigned char d : tails) {
          const std::string bytes{static_cast<char>(a), static_cast<char>(b), static_cast<char>(c),
                                  static_cast<char>(d)};
          const Utf8Head head = utf8_head(bytes);
          bool any = false;
          for (std::size_t n = 1; n <= 4; ++n) any = any || is_character(std::string_view(bytes).substr(0, n));
          ASSERT_EQ(head.kind == Utf8Kind::complete, any) << a << ' ' << b << ' ' << int{c} << ' ' << int{d};
          if (!any) continue;
          ASSERT_TRUE(is_character(std::string_view(bytes).substr(0, head.length)));
        }
      }
    }
  }
}

TEST(Utf8, OffsetOfTheFirstBadByte) {
  EXPECT_FALSE(find_invalid_utf8(""));
  EXPECT_FALSE(find_invalid_utf8("a\u00e9\u20ac\U0001F600"));
  EXPECT_FALSE(find_invalid_utf8(std::string_view("a\0b", 3)));
  EXPECT_EQ(find_invalid_utf8("ab\xFFz"), 2u);
  EXPECT_EQ(find_invalid_utf8("\u20ac\xE2\x82"), 3u);
  EXPECT_EQ(find_invalid_utf8("x\xED\xA0\x80"), 1u) << "a surrogate";
  EXPECT_EQ(find_invalid_utf8("x\xC0\x80"), 1u) << "an overlong NUL";
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0u) << "over U+10FFFF";
}

TEST(Utf8Stream, AgreesWithBruteForceHoweverTheBytesAreCut) {
  std::mt19937_64 random(20240611);
  for (int round = 0; round < 400; ++round) {
    std::string bytes = testing::random_text(random, 20);
    // Damage every other stream.
    for (int i = 0; round % 2 == 1 && i < 6; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (round % 3 == 0) bytes.resize(bytes.size() - random() % 3);
    Utf8Stream stream;
    std::string out;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t take = round % 4 < 2 ? 1 : random() % 6;
      const std::string piece = stream.push(std::string_view(bytes).substr(at, take));
      ASSERT_FALSE(find_invalid_utf8(piece));
      out += piece;
      at += take;
    }
    out += stream.finish();
    ASSERT_EQ(out, brute_force(bytes));
    ASSERT_EQ(stream.finish(), "");
  }
}

TEST(Utf8Stream, HoldsACharacterBackUntilItIsWhole) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.push("\x98"), "");
  EXPECT_EQ(stream.push("\x80z"), "\U0001F600z");
  EXPECT_EQ(stream.push("\xE2\x82"), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

}  // namespace
}  // namespace glimpse::text
