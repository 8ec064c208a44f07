// Text that is held back for stop strings, against a reader that takes the same bytes one at a time.
#include "glimpse/engine/requests/answer_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace glimpse::engine {
namespace {

/// What comes before the stop string that is complete first; of several that end there, the longest.
std::string before_stop(const std::string& text, const std::vector<std::string>& stops, bool& stopped) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    stopped = longest > 0;
    if (stopped) return text.substr(0, end - longest);
  }
  return text;
}

TEST(AnswerText, EndsWhereAReaderOfSingleBytesWouldEnd) {
  std::mt19937 random(3);
  int stops_seen = 0;
  for (int round = 0; round < 4000; ++round) {
    const auto word = [&](std::size_t length) {
      std::string text;
      for (std::size_t i = 0; i < length; ++i) text += static_cast<char>('a' + random() % 2);
      return text;
    };
    std::vector<std::string> stops;
    for (std::size_t i = 0; i < 1 + random() % 3; ++i) stops.push_back(word(2 + random() % 6));
    const std::string all = word(40);
    bool stopped = false;
    const std::string expected = before_stop(all, stops, stopped);
    stops_seen += stopped;
    AnswerText text(stops);
    std::string given, of_tokens;
    bool ended = false;
    text::Token token = 0;
    for (std::size_t at = 0; at < all.size() && !ended;) {
      const std::size_t count = random() % 5;  // none at times
      ended = text.add(token++, all.substr(at, count));
      at += count;
      given += text.take_text();
      EXPECT_TRUE(expected.starts_with(given)) << "nothing of a stop string comes out";
      for (const AnswerText::Piece& piece : text.take_tokens()) of_tokens += piece.bytes;
    }
    EXPECT_EQ(ended, stopped);
    if (!ended) text.finish();
    given += text.take_text();
    int tokens = 0;
    for (const AnswerText::Piece& piece : text.take_tokens()) of_tokens += piece.bytes, ++tokens;
    EXPECT_EQ(given, expected);
    EXPECT_TRUE(expected.starts_with(of_tokens));
    if (!stopped) {
      EXPECT_EQ(of_tokens, expected);
    }
  }
  EXPECT_GT(stops_seen, 1000);
}

TEST(AnswerText, HoldsNothingBackWithoutNeed) {
  AnswerText text({"STOP", "\n\n"});
  EXPECT_FALSE(text.add(1, "a ST"));
  EXPECT_EQ(text.take_text(), "a ");
  EXPECT_TRUE(text.take_tokens().empty()) << "a token comes with its last byte";
  EXPECT_FALSE(text.add(2, "ART\n"));
  EXPECT_EQ(text.take_text(), "START");
  ASSERT_EQ(text.take_tokens().size(), 1U);
  EXPECT_FALSE(text.add(3, "b"));
  EXPECT_EQ(text.take_text(), "\nb");
  EXPECT_TRUE(text.add(4, " STOP, it said"));
  EXPECT_EQ(text.take_text(), " ");
  EXPECT_EQ(text.take_tokens().size(), 2U) << "not the one that completes it";
}

TEST(AnswerText, CutsTheTokenInWhichAStopStringBegins) {
  AnswerText text({"END"});
  EXPECT_FALSE(text.add(1, "x"));
  EXPECT_FALSE(text.add(2, "yE"));
  EXPECT_FALSE(text.add(3, "N"));
  EXPECT_TRUE(text.add(4, "D"));
  const std::vector<AnswerText::Piece> pieces = text.take_tokens();
  ASSERT_EQ(pieces.size(), 3U);
  EXPECT_EQ(pieces[0].bytes, "x");
  EXPECT_EQ(pieces[1].bytes, "y");
  EXPECT_EQ(pieces[2].bytes, "");
  EXPECT_EQ(text.take_text(), "xy");
}

TEST(AnswerText, StopStringsCountBehindTheLeastNumberOfTokens) {
  AnswerText text({"END"}, 2);
  EXPECT_FALSE(text.add(1, "END"));
  EXPECT_EQ(text.take_text(), "END") << "nothing is held back there";
  EXPECT_FALSE(text.add(2, "xEN"));
  EXPECT_EQ(text.take_tokens().size(), 2U);
  EXPECT_FALSE(text.add(3, "D")) << "it began too early";
  EXPECT_EQ(text.take_text(), "xEND");
  EXPECT_TRUE(text.add(4, "yEND"));
  EXPECT_EQ(text.take_text(), "y");
}

TEST(AnswerText, HandsOutWholeCharacters) {
  AnswerText text;
  EXPECT_FALSE(text.add(1, "a\xc3"));
  EXPECT_EQ(text.take_text(), "a");
  EXPECT_EQ(text.take_tokens().front().bytes, "a\xc3") << "tokens have their own bytes";
  EXPECT_FALSE(text.add(2, "\xa4"));
  EXPECT_EQ(text.take_text(), "\xc3\xa4");
  EXPECT_FALSE(text.add(3, "\xe2\x82"));
  text.finish();
  EXPECT_EQ(text.take_text(), "\xef\xbf\xbd");
}

}  // namespace
}  // namespace glimpse::engine
