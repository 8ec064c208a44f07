// Answers that are free until a call begins: by a text that announces it, or by the name of what is called.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "glimpse/text/grammar.h"
#include "grammar_support.h"

namespace glimpse::text {
namespace {

TEST(Grammar, WaitsForATrigger) {
  GrammarFollower at(wish_for("root ::= \"<call>\" [0-9]+ \"!\"", some_texts(), "", {"<call>", "[x]"}));
  for (const char c : std::string("a <cal <call")) {
    EXPECT_FALSE(at.binds());
    EXPECT_TRUE(at.may_end() && !at.must_end());
    at.accept(static_cast<Token>(c));
  }
  EXPECT_FALSE(at.binds());
  at.accept('>');
  EXPECT_TRUE(at.binds());
  EXPECT_TRUE(at.allows('7') && !at.allows('x') && !at.may_end());
  at.accept('7');
  at.accept('!');
  EXPECT_TRUE(at.must_end());
}

TEST(Grammar, ATokenThatBreaksItWithItsTriggerFreesTheAnswer) {
  const auto texts = some_texts({"<call>x", "<call>4"});
  GrammarFollower broken(wish_for("root ::= \"<call>\" [0-9]+", texts, "", {"<call>"}));
  broken.accept(256);
  EXPECT_FALSE(broken.binds());
  EXPECT_TRUE(broken.allows('x') && broken.may_end());
  GrammarFollower whole(wish_for("root ::= \"<call>\" [0-9]+", texts, "", {"<call>"}));
  whole.accept(257);
  EXPECT_TRUE(whole.binds() && whole.may_end() && whole.allows('5') && !whole.allows('x'));
}

// Calls as JSON, of one of three.
constexpr const char* kCalls = R"(root ::= space "{" space id? "\"name\":" space name ", \"with\": " [0-9]+ "}"
id ::= "\"id\": \"" [^"]* "\", "
name ::= "\"tide\"" | "\"tidewater\"" | "\"wind\""
space ::= " "?)";
const std::vector<std::string> kNames{"tide", "tidewater", "wind"};

GrammarFollower by_name(const std::shared_ptr<const TokenTexts>& texts,
                        const std::vector<std::string>& names = kNames) {
  GrammarWish wish = wish_for(kCalls, texts);
  wish.names = names;
  return GrammarFollower(wish);
}

/// How many letters of a text are free.
std::size_t free_letters(GrammarFollower at, const std::string& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (at.binds()) return i;
    EXPECT_TRUE(at.may_end() && !at.must_end() && at.allows('x'));
    at.accept(static_cast<Token>(static_cast<unsigned char>(text[i])));
  }
  return at.binds() ? text.size() : std::string::npos;
}

TEST(Grammar, ACallIsKnownByItsName) {
  const GrammarFollower at = by_name(some_texts());
  const auto bound_behind = [&](const std::string& text, const std::string& known) {
    EXPECT_EQ(free_letters(at, text), text.find(known) + known.size()) << text;
  };
  bound_behind(R"({"name":"tide", "with": 7})", "tide\"");
  bound_behind(R"( { "name": "tidewater", "with": 7})", "tidew");
  bound_behind(R"(I look: {"name":"wind", "with": 7})", "wind\"");
  // The name of a call is not what stands elsewhere by the same letters.
  bound_behind(R"({"id": "wind", "name":"tide", "with": 7})", "tide\"");
}

TEST(Grammar, BehindItsNameACallObeys) {
  GrammarFollower at = by_name(some_texts());
  for (const char c : std::string(R"(So: {"name":"tide")")) at.accept(static_cast<Token>(c));
  ASSERT_TRUE(at.binds());
  EXPECT_TRUE(at.allows(',') && !at.allows(' ') && !at.allows('}') && !at.may_end());
  for (const char c : std::string(R"(, "with": 7})")) at.accept(static_cast<Token>(c));
  EXPECT_TRUE(at.must_end());
}

TEST(Grammar, WhatIsNoCallStaysFree) {
  const GrammarFollower at = by_name(some_texts());
  for (const char* text :
       {R"({"name":"moon", "with": 7})", R"({"tide": 7})", "The tide, the wind.", R"("name":"tide", )",
        R"({} {"name":"tide", "with": 7})", R"({"name":"tides", "with": 7})", "{", "{{\"name\":"}) {
    EXPECT_EQ(free_letters(at, text), std::string::npos) << text;
  }
  // An id without end is no opening of a call.
  EXPECT_EQ(free_letters(at, R"({"id": ")" + std::string(600, 'a') + R"(", "name":"tide", "with": 7})"),
            std::string::npos);
}

TEST(Grammar, ATokenMayHoldMoreThanTheName) {
  const auto texts = some_texts({R"(x {"name":"tide", )", R"( {"name":"tide"!)", R"({"name":"tide)"});
  GrammarFollower whole = by_name(texts);
  whole.accept(256);
  EXPECT_TRUE(whole.binds() && whole.allows('"') && !whole.allows('x'));
  GrammarFollower broken = by_name(texts);
  broken.accept(257);
  EXPECT_TRUE(!broken.binds() && broken.allows('x'));
  GrammarFollower open = by_name(texts);
  open.accept(258);
  EXPECT_FALSE(open.binds()) << "it may be another name";
  open.accept('w');
  EXPECT_TRUE(open.binds() && open.allows('a') && !open.allows('"'));
}

TEST(Grammar, ACopyOfAnOpeningIsAMark) {
  GrammarFollower at = by_name(some_texts());
  for (const char c : std::string(R"({"name":"tid)")) at.accept(static_cast<Token>(c));
  GrammarFollower other = at;
  other.accept('y');
  other.accept('"');
  EXPECT_FALSE(other.binds());
  at.accept('e');
  at.accept('"');
  EXPECT_TRUE(at.binds());
}

}  // namespace
}  // namespace glimpse::text
