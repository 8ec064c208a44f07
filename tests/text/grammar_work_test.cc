// What a grammar may cost: hostile ones end in an error that is the request's own, and the same way each time; those
// that people write do not come near.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "glimpse/base/request_error.h"
#include "glimpse/text/grammar.h"
#include "glimpse/text/json_grammar.h"
#include "grammar_support.h"
#include "tests/support/refusal.h"

namespace glimpse::text {
namespace {

using ::testing::HasSubstr;

/// What a text of one letter ends in, and behind how many.
struct End {
  int letters = 0;
  std::string why;
  bool operator==(const End&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const End& end) { return out << end.letters << " " << end.why; }
};
End end_of(const std::string& gbnf, const std::shared_ptr<const TokenTexts>& texts, int letters,
           const GrammarWork& work = {}) {
  GrammarFollower at(
      {std::make_shared<const Grammar>(gbnf, texts, std::vector<std::pair<Token, std::string>>(), work), {}, {}});
  End end;
  try {
    for (; end.letters < letters && at.allowed()->has('a'); ++end.letters) at.accept('a');
  } catch (const RequestError& error) {
    end.why = error.what();
  }
  return end;
}

/// Any text of at most 2,000 characters and another such: after n letters n possibilities are open, and each letter
/// costs as many.
const std::string kTwice = "root ::= .{0,2000} .{0,2000} \"!\"";

TEST(GrammarWork, OneTokenIsBounded) {
  // So many letters at once that their steps are too many.
  std::vector<std::string> longer{std::string(1500, 'a')};
  const auto texts = some_texts(longer);
  GrammarFollower at(wish_for(kTwice, texts));
  const std::string why = refusal([&] { at.allowed(); });
  EXPECT_THAT(why, HasSubstr("more than 1048576 steps for one token"));
  EXPECT_THAT(why, HasSubstr("simplify it"));
}

TEST(GrammarWork, ARequestIsBoundedEverywhereAlike) {
  // Each letter is within what a token may cost, the sum is over what a request may.
  std::string gbnf = "root ::= ";
  for (int i = 0; i < 12; ++i) gbnf += "([ab]{0,1500} | [ac]{0,1500}) ";
  const auto texts = some_texts();
  GrammarWork work;
  work.in_all = 1 << 17;
  work.each = 1 << 9;
  const End once = end_of(gbnf, texts, 2000, work), again = end_of(gbnf, texts, 2000, work);
  EXPECT_THAT(once.why, HasSubstr("more than 131072 steps, and 576 for each of " + std::to_string(once.letters)));
  EXPECT_GT(once.letters, 3);
  EXPECT_EQ(once, again);
  work.in_all *= 4;
  EXPECT_GT(end_of(gbnf, texts, 2000, work).letters, once.letters);
}

TEST(GrammarWork, WhatPeopleWriteIsFarBelow) {
  const auto texts = some_texts({"aa", "aaaa", std::string(16, 'a'), std::string(64, 'a')});
  EXPECT_EQ(end_of("root ::= \"a\"{0,2000} \"a\"{0,2000}", texts, 3000), (End{3000, ""}));
  EXPECT_EQ(end_of("root ::= \"a\" root \"b\" | \"c\"", texts, 3000), (End{3000, ""}));
  EXPECT_EQ(end_of("root ::= [a-z]{0,2000} (\" \" [a-z]{0,2000}){0,50}", texts, 2000), (End{2000, ""}));
  EXPECT_EQ(end_of("root ::= \"a\"+", texts, 20000), (End{20000, ""}));
}

TEST(GrammarWork, OthersThatShareAGrammarGoOnBehindARefusal) {
  const auto texts = some_texts({std::string(1500, 'a')});
  const auto grammar = std::make_shared<const Grammar>(kTwice, texts);
  GrammarFollower one({grammar, {}, {}}), other({grammar, {}, {}});
  EXPECT_THROW(one.allowed(), RequestError);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(other.allows('b') && other.allows('!'));
    other.accept('b');
  }
  other.accept('!');
  EXPECT_TRUE(other.may_end());
}

TEST(GrammarWork, WaysThatMeetCountAsSteps) {
  // Each of a rule's alternatives begins with the same 4,000.
  std::string many = "root ::= m\nm ::= r", same = "\nr ::= \"a\"";
  for (int i = 1; i < 4000; ++i) {
    many += "|r";
    same += "|\"a\"";
  }
  EXPECT_THAT(refusal([&] { Grammar(many + same, some_texts()); }), HasSubstr("steps for one token"));
}

TEST(GrammarWork, ADepthThatIsRefusedIsRefusedAgain) {
  // 4,096 returns a letter: the last one of the 255th is the first of too many.
  std::string gbnf = "root ::= s \"a\"";
  for (int i = 1; i < 4096; ++i) gbnf += "|s \"a\"";
  gbnf += "\ns ::= \"x\" s \"z\" | \"y\"";
  GrammarFollower at(wish_for(gbnf, some_texts()));
  for (int i = 0; i < 254; ++i) at.accept('x');
  for (int i = 0; i < 2; ++i) {
    GrammarFollower other = at;
    EXPECT_THAT(refusal([&] { other.accept('x'); }), HasSubstr("nests too deeply"));
  }
}

}  // namespace
}  // namespace glimpse::text
