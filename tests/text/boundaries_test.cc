#include "glimpse/text/boundaries.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "glimpse/base/error.h"
#include "support.h"

namespace glimpse::text::testing {
namespace {

TEST(Boundaries, AreThoseOfTheTable) {
  for (const char* text :
       {"\n\n", "a\n \t\r\nb", "---", "x-----", "***", "```cpp", "}", "f(x[0]", "->", " <br>", "\r\n\r\n"}) {
    EXPECT_EQ(boundary_of(text), Boundary::section) << text;
  }
  for (const char* text : {".", "?!", " end!", "\n", "\n    x", "\r\n", "。", "？", "！", "3.5", "...", "x, y. z"}) {
    EXPECT_EQ(boundary_of(text), Boundary::sentence) << text;
  }
  for (const char* text : {",", " a;", "key:", "，", "；", "：", "、", ", "})
    EXPECT_EQ(boundary_of(text), Boundary::clause) << text;
  for (const char* text : {" ", "\t", " word", "a b"}) EXPECT_EQ(boundary_of(text), Boundary::space) << text;
  for (const char* text : {"", "word", "--", "**", "``", "{", "(", ")", "<", "é", "中文"}) {
    EXPECT_EQ(boundary_of(text), Boundary::none) << text;
  }
}

/// The tokenizer of a vocabulary with single bytes and a few longer pieces.
class MadeVocabulary : public ::testing::Test {
 protected:
  MadeVocabulary() : context_(small_bpe()), tokenizer_(metadata_of(context_.get())), classes_(tokenizer_) {}
  Token token(std::string_view piece) const {
    for (Token t = 0; t < tokenizer_.size(); ++t) {
      if (tokenizer_.piece(t, true) == piece) return t;
    }
    ADD_FAILURE() << "the vocabulary lacks a piece";
    return 0;
  }
  Boundary pair(std::string_view previous, std::string_view piece) const {
    return classes_.classify(token(previous), token(piece));
  }
  GgufPointer context_;
  Tokenizer tokenizer_;
  BoundaryClassifier classes_;
};

TEST_F(MadeVocabulary, DelimitersOfTwoTokens) {
  EXPECT_EQ(pair("\n", "\n"), Boundary::section);
  EXPECT_EQ(pair("a", "\n"), Boundary::sentence);
  EXPECT_EQ(classes_.classify(-1, token("\n")), Boundary::sentence);
  EXPECT_EQ(pair("\n", "a"), Boundary::none) << "the newline was the other's";
  EXPECT_EQ(pair("-", "-"), Boundary::none);
  EXPECT_EQ(pair("a", "."), Boundary::sentence);
  EXPECT_THROW(classes_.classify(-1, tokenizer_.size()), InternalError);
  EXPECT_THROW(classes_.classify(-2, 0), InternalError);
}

/// Every token and pair of tokens against the text itself: a pair has the best of the second token's own delimiters and
/// of those that neither token has alone.
void expect_classes(const Tokenizer& tokenizer, const BoundaryClassifier& classes, int pairs) {
  ASSERT_EQ(classes.size(), tokenizer.size());
  for (Token token = 0; token < tokenizer.size(); ++token) {
    ASSERT_EQ(classes.classify(-1, token), boundary_of(tokenizer.piece(token, true))) << token;
  }
  std::vector<Token> ends;  // tokens that may take part in a delimiter of two
  for (Token token = 0; token < tokenizer.size(); ++token) {
    const std::string piece = tokenizer.piece(token, true);
    if (piece.find_first_of("\n-*`\xE3\xEF\x80\xBC") != std::string::npos) ends.push_back(token);
  }
  ASSERT_FALSE(ends.empty());
  std::mt19937_64 random(21);
  int crossing = 0;
  for (int i = 0; i < pairs; ++i) {
    const Token previous = ends[random() % ends.size()];
    const Token token = ends[random() % ends.size()];
    const std::string first = tokenizer.piece(previous, true);
    const std::string second = tokenizer.piece(token, true);
    Boundary expected = boundary_of(second);
    const std::string both = first + second;
    for (const auto& [text, boundary] : std::vector<std::pair<std::string, Boundary>>{{"---", Boundary::section},
                                                                                      {"***", Boundary::section},
                                                                                      {"```", Boundary::section},
                                                                                      {"。", Boundary::sentence},
                                                                                      {"？", Boundary::sentence},
                                                                                      {"！", Boundary::sentence},
                                                                                      {"，", Boundary::clause},
                                                                                      {"；", Boundary::clause},
                                                                                      {"：", Boundary::clause},
                                                                                      {"、", Boundary::clause}}) {
      for (std::size_t at = both.find(text); at != std::string::npos; at = both.find(text, at + 1)) {
        if (at < first.size() && at + text.size() > first.size()) expected = std::min(expected, boundary);
      }
    }
    const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
    std::size_t left = first.size();
    while (left > 0 && blank(first[left - 1])) --left;
    std::size_t right = 0;
    while (right < second.size() && blank(second[right])) ++right;
    if (left > 0 && first[left - 1] == '\n' && right < second.size() && second[right] == '\n')
      expected = Boundary::section;
    crossing += expected != boundary_of(second) ? 1 : 0;
    ASSERT_EQ(classes.classify(previous, token), expected) << '[' << first << "][" << second << ']';
  }
  EXPECT_GT(crossing, 0);
}

TEST_F(MadeVocabulary, IsClassifiedByItsText) {
  expect_classes(tokenizer_, classes_, 20000);
}

TEST(Boundaries, OfTheEmbeddedModel) {
  const NamedModel model = embedded_model();
  if (model.path.empty()) GTEST_SKIP() << "the embedded model is not on this machine; scripts/fetch-model fetches it";
  const Pair pair(model.path);
  const BoundaryClassifier classes(pair.ours);
  expect_classes(pair.ours, classes, 200000);
  const auto ids = pair.ours.encode("One. Two, three\n\nfour", Special::as_text, false);
  std::vector<Boundary> found;
  Token previous = -1;
  for (const Token token : ids) {
    found.push_back(classes.classify(previous, token));
    previous = token;
  }
  EXPECT_EQ(std::count(found.begin(), found.end(), Boundary::section), 1);
  EXPECT_EQ(std::count(found.begin(), found.end(), Boundary::clause), 1);
  EXPECT_GE(std::count(found.begin(), found.end(), Boundary::sentence), 1);
}

}  // namespace
}  // namespace glimpse::text::testing
