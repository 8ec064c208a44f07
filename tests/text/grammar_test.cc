// Grammars: what they allow against a brute-force acceptor that is written here, for all short texts; what they refuse;
// and schemas, whose answers at random must parse and obey.
#include "glimpse/text/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/text/json_grammar.h"
#include "glimpse/text/sampler.h"
#include "glimpse/text/utf8.h"
#include "grammar_support.h"
#include "tests/support/refusal.h"

namespace glimpse::text {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// ---- A language as all its texts up to a length: unions, products and closures of sets of strings.

using Language = std::set<std::string>;
// Each beginning of kLooked letters has a text of at most kLongest in the languages below.
constexpr std::size_t kLongest = 9, kLooked = 4;

Language either(const Language& a, const Language& b) {
  Language out = a;
  out.insert(b.begin(), b.end());
  return out;
}
Language both(const Language& a, const Language& b) {
  Language out;
  for (const std::string& x : a) {
    for (const std::string& y : b) {
      if (x.size() + y.size() <= kLongest) out.insert(x + y);
    }
  }
  return out;
}
Language times(const Language& a, std::size_t least, std::size_t most) {
  Language out, power{""};
  for (std::size_t i = 0; i <= most; ++i) {
    if (i >= least) out = either(out, power);
    power = both(power, a);
  }
  return out;
}

struct Sample {
  std::string gbnf;
  Language language;
};

std::vector<Sample> samples() {
  const Language a{"a"}, b{"b"}, c{"c"};
  std::vector<Sample> out;
  out.push_back({"root ::= \"abc\"", {"abc"}});
  out.push_back({"root ::= \"a\" | \"ab\" | \"\"  # a comment\n", {"a", "ab", ""}});
  out.push_back({"root ::= [ab]* \"c\"", both(times(either(a, b), 0, kLongest), c)});
  out.push_back({"root ::= (\"a\" | \"bc\"){2,3} \"b\"?", both(times(either(a, {"bc"}), 2, 3), either(b, {""}))});
  out.push_back({"root ::= \"ab\"{2} \"c\"+", both({"abab"}, times(c, 1, kLongest))});
  out.push_back({"root ::= x{0,2} y\nx ::= \"a\" | \"b\"\ny ::=\n  \"c\"\n", both(times(either(a, b), 0, 2), c)});
  out.push_back({"root ::= [^b-z\\x00-`{-\\U0010ffff] \"\\x62\" .{0,1}", {}});
  Language any;
  for (int byte = 1; byte < 128; ++byte) any.insert("ab" + std::string(1, static_cast<char>(byte)));
  out.back().language = either(any, {"ab"});
  // Nested: a^n c b^n.
  Language nested;
  for (std::size_t n = 0; 2 * n + 1 <= kLongest; ++n) {
    std::string text(n, 'a');
    text += 'c';
    text.append(n, 'b');
    nested.insert(text);
  }
  out.push_back({"root ::= \"a\" root \"b\" | \"c\"", nested});
  // Ambiguous: every text of a's in many ways.
  out.push_back({"root ::= x x\nx ::= \"a\" x | \"a\" \"a\" x | \"\"", times(a, 0, kLongest)});
  // Repetitions of what may be empty, and rules that end with each other.
  out.push_back({"root ::= (\"a\"? \"b\"?)* \"c\"", both(times(either(a, b), 0, kLongest), c)});
  out.push_back({"root ::= x\nx ::= y | \"a\"\ny ::= x | \"b\" x", both(times(b, 0, kLongest), a)});
  // Palindromes of a and b.
  Language palindromes;
  for (const std::string& text : times(either(a, b), 0, kLongest)) {
    if (std::equal(text.begin(), text.end(), text.rbegin())) palindromes.insert(text);
  }
  out.push_back({"root ::= \"a\" root \"a\" | \"b\" root \"b\" | [ab]?", palindromes});
  return out;
}

/// Every beginning that the grammar allows, letter by letter, against the language.
void compare(const GrammarFollower& at, const std::string& text, const Language& language) {
  ASSERT_EQ(at.may_end(), language.count(text) > 0) << "'" << text << "'";
  if (text.size() == kLooked) return;
  const auto allowed = at.allowed();
  for (char next = 'a'; next <= 'd'; ++next) {
    const std::string longer = text + next;
    const bool begins = std::any_of(language.begin(), language.end(),
                                    [&](const std::string& each) { return each.starts_with(longer); });
    const auto token = static_cast<Token>(next);
    ASSERT_EQ(allowed->has(token), begins) << "'" << longer << "'";
    ASSERT_EQ(at.allows(token), begins) << "'" << longer << "'";
    if (!begins) continue;
    GrammarFollower further = at;
    further.accept(token);
    compare(further, longer, language);
  }
}

TEST(Grammar, AllowsWhatABruteForceAcceptorAllows) {
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.gbnf);
    compare(GrammarFollower(wish_for(sample.gbnf, some_texts())), "", sample.language);
  }
}

TEST(Grammar, ATokenIsAllowedWhereItsBytesAre) {
  std::vector<std::string> longer;
  const std::string letters = "abcd";
  for (const char x : letters) {
    for (const char y : letters) {
      longer.push_back({x, y});
      for (const char z : letters) longer.push_back({x, y, z});
    }
  }
  longer.push_back("a");  // a second token of the same text
  const auto texts = some_texts(longer);
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.gbnf);
    GrammarFollower at(wish_for(sample.gbnf, texts));
    std::mt19937 random(3);
    for (int step = 0; step < 4 && at.allowed(); ++step) {
      const auto allowed = at.allowed();
      std::vector<Token> possible;
      for (Token token = 256; token < 256 + static_cast<Token>(longer.size()); ++token) {
        GrammarFollower bytes = at;
        bool all = true;
        for (const char byte : longer[static_cast<std::size_t>(token - 256)]) {
          all = all && bytes.allows(static_cast<Token>(static_cast<unsigned char>(byte)));
          if (all) bytes.accept(static_cast<Token>(static_cast<unsigned char>(byte)));
        }
        EXPECT_EQ(allowed->has(token), all) << longer[static_cast<std::size_t>(token - 256)];
        if (all) possible.push_back(token);
      }
      EXPECT_FALSE(allowed->has(static_cast<Token>(texts->size() - 1))) << "what ends a text is no text";
      if (possible.empty()) break;
      at.accept(possible[random() % possible.size()]);
    }
  }
}

TEST(Grammar, CharactersComeInBytes) {
  // "é" is c3 a9, "日" e6 97 a5, the emoji f0 9f 98 80.
  GrammarFollower at(wish_for("root ::= [é日😀]{3}", some_texts()));
  const auto bytes_allowed = [&] {
    std::string out;
    const auto allowed = at.allowed();
    for (Token byte = 0; byte < 256; ++byte) {
      if (allowed->has(byte)) out += static_cast<char>(byte);
    }
    return out;
  };
  EXPECT_EQ(bytes_allowed(), "\xc3\xe6\xf0");
  at.accept(0xe6);
  EXPECT_EQ(bytes_allowed(), "\x97");
  EXPECT_FALSE(at.may_end());
  at.accept(0x97);
  at.accept(0xa5);
  at.accept(0xc3);
  EXPECT_EQ(bytes_allowed(), "\xa9");
  // Whatever is allowed by "any character" is UTF-8.
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    GrammarFollower any(wish_for("root ::= .{4}", some_texts()));
    std::string text;
    while (!any.must_end()) {
      const auto allowed = any.allowed();
      std::vector<Token> possible;
      for (Token byte = 0; byte < 256; ++byte) {
        if (allowed->has(byte)) possible.push_back(byte);
      }
      ASSERT_FALSE(possible.empty());
      const Token next = possible[random() % possible.size()];
      text += static_cast<char>(next);
      any.accept(next);
    }
    EXPECT_FALSE(find_invalid_utf8(text)) << Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
  }
}

TEST(Grammar, ACopyIsAMark) {
  GrammarFollower at(wish_for("root ::= \"a\" root \"b\" | \"c\"", some_texts()));
  at.accept('a');
  const GrammarFollower mark = at;
  at.accept('a');
  at.accept('c');
  at.accept('b');
  EXPECT_FALSE(at.must_end());
  at.accept('b');
  EXPECT_TRUE(at.must_end() && at.may_end());
  EXPECT_TRUE(mark.allows('c') && mark.allows('a') && !mark.allows('b'));
  at = mark;
  at.accept('c');
  EXPECT_FALSE(at.allows('c'));
  at.accept('b');
  EXPECT_TRUE(at.must_end());
}

TEST(Grammar, BeginsBehindWhatThePromptSaid) {
  GrammarFollower at(wish_for("root ::= \"ab\" [cd]", some_texts(), "ab"));
  EXPECT_TRUE(at.allows('c') && !at.allows('a'));
  EXPECT_THAT(refusal([&] { GrammarFollower(wish_for("root ::= \"ab\"", some_texts(), "b")); }),
              HasSubstr("does not take"));
}

TEST(Grammar, ControlTokensAreTextOnlyWhereShown) {
  std::vector<std::string> texts{"a", "", "x"};
  const auto made = std::make_shared<const TokenTexts>(texts, std::vector<Token>{});
  const auto grammar = std::make_shared<const Grammar>("root ::= \"<t>\" \"a\"", made,
                                                       std::vector<std::pair<Token, std::string>>{{1, "<t>"}});
  GrammarFollower at({grammar, "", {}});
  EXPECT_TRUE(at.allows(1) && at.allowed()->has(1) && !at.allows(0));
  at.accept(1);
  EXPECT_TRUE(at.allows(0) && !at.allows(1));
}

TEST(Grammar, RefusesWhatItCannotRead) {
  const auto refused = [](std::string_view gbnf, std::string_view why) {
    SCOPED_TRACE(gbnf.substr(0, 60));
    EXPECT_THAT(refusal([&] { Grammar(gbnf, some_texts()); }), HasSubstr(std::string(why)));
  };
  refused("", "'root'");
  refused("a ::= \"x\"", "'root'");
  refused("root = \"x\"", "'::='");
  refused("root ::= other", "'other'");
  refused("root ::= \"x", "does not end in line 1, where it ends;");
  refused("root ::= \"x\"\nother ::= \"\\q\"", "line 2, at '\\q\"'");
  refused("root ::= [x", "does not end");
  refused("root ::= []", "nothing in it");
  refused("root ::= [z-a]", "before it begins");
  refused("root ::= (\"x\"", "')'");
  refused("root ::= \"\\q\"", "escape");
  refused("root ::= \"\\x1\"", "hexadecimal");
  refused("root ::= \"\\Uffffffff\"", "U+10FFFF");
  refused("root ::= * \"x\"", "repetition of nothing");
  refused("root ::= \"x\"{3,2}", "below its least");
  refused("root ::= \"x\"{2001}", "2000");
  refused("root ::= \"x\"{999999999999999999999}", "2000");
  refused("root ::= <think>", "tokens");
  refused("root ::= \"x\" $", "line");
  refused("root ::= \"\xff\"", "UTF-8");
  refused("root ::= root \"x\" | \"y\"", "left recursion");
  refused("root ::= x root \"y\" | \"z\"\nx ::= \"a\"?", "left recursion");
  refused("root ::= a \"x\" | \"y\"\na ::= b\nb ::= \"\" c \"z\"?\nc ::= root", "left recursion");
  refused("root ::= root", "takes no text");
  refused("root ::= " + std::string(10000, '(') + "\"x\"" + std::string(10000, ')'), "nested too deeply");
  refused(
      "root ::= ((((\"x\"{1000}){1000}){1000}){1000}){1000}\n" + std::string("a ::= (\"y\"{2000} b){2000}\nb ::= ") +
          [] {
            std::string many;
            for (int i = 0; i < 300; ++i) many += "\"z\"{1500,2000} ";
            return many;
          }(),
      "elements");
}

// ---- Schemas.

/// A small check of the keywords that these tests use.
bool obeys(const Json& value, const Json& schema) {
  if (schema.contains("enum")) {
    const Json& words = schema["enum"];
    return std::find(words.begin(), words.end(), value) != words.end();
  }
  if (schema.contains("anyOf")) {
    return std::any_of(schema["anyOf"].begin(), schema["anyOf"].end(),
                       [&](const Json& each) { return obeys(value, each); });
  }
  const std::string type = schema.value("type", "");
  if (type == "object") {
    if (!value.is_object()) return false;
    for (const auto& name : schema.value("required", Json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    for (const auto& [name, each] : value.items()) {
      const auto& known = schema["properties"];
      if (!known.contains(name) || !obeys(each, known[name])) return false;
    }
    return true;
  }
  if (type == "array") {
    if (!value.is_array() || value.size() < schema.value("minItems", 0u) ||
        value.size() > schema.value("maxItems", 99u)) {
      return false;
    }
    return std::all_of(value.begin(), value.end(), [&](const Json& each) { return obeys(each, schema["items"]); });
  }
  if (type == "integer") {
    return value.is_number_integer() && value >= schema.value("minimum", value) &&
           value <= schema.value("maximum", value);
  }
  if (type == "string") {
    if (!value.is_string()) return false;
    const auto text = value.get<std::string>();
    const auto heads = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
    return heads <= schema.value("maxLength", std::ptrdiff_t{1000});
  }
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  return type == "number" && value.is_number();
}

/// What a model says that knows nothing: logits at random, ends preferred so that texts stay short.
std::string random_answer(const GrammarWish& wish, const TokenTexts& texts, std::uint32_t seed) {
  SamplingOptions options{.temperature = 100, .top_k = 0, .top_p = 1, .min_p = 0, .seed = seed};
  Sampler sampler(options);
  const auto end = static_cast<Token>(texts.size() - 1);
  sampler.constrain(wish, std::vector{end});
  std::mt19937 random(seed);
  std::vector<float> logits(texts.size());
  std::string text;
  for (int step = 0; step < 4000 && !sampler.must_end(); ++step) {
    for (float& logit : logits) logit = static_cast<float>(random() % 1000) / 10;
    for (const char c : std::string("\"}],")) logits[static_cast<std::size_t>(c)] += 400;
    const Token token = sampler.sample(logits);
    if (token == end) return text;
    text += texts.text(token);
    sampler.accept(token);
  }
  return text;
}

TEST(JsonGrammar, AnswersAtRandomParseAndObeyTheSchema) {
  const std::vector<Json> schemas{
      Json::parse(
          R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 5},
                   "c": {"type": "boolean"}}, "required": ["a", "b"], "additionalProperties": false})"),
      Json::parse(
          R"({"type": "array", "items": {"type": "integer", "minimum": 3, "maximum": 12}, "minItems": 2, "maxItems": 4})"),
      Json::parse(R"({"enum": ["red", "green", 3, null]})"),
      Json::parse(R"({"type": "object", "properties": {"x": {"anyOf": [{"type": "null"}, {"type": "object",
                   "properties": {"y": {"type": "number"}}, "required": ["y"], "additionalProperties": false}]}},
                   "required": ["x"], "additionalProperties": false})")};
  const auto texts = some_texts({"\"a\"", "{\"", "\": ", "true", "12", "ull", "é", "\\u"});
  for (const Json& schema : schemas) {
    SCOPED_TRACE(schema.dump());
    const auto wish = wish_for(json_schema_grammar(schema.dump(), schema_limits(std::chrono::seconds(5))), texts);
    for (std::uint32_t seed = 0; seed < 25; ++seed) {
      const std::string text = random_answer(wish, *texts, seed);
      const Json value = Json::parse(text, nullptr, false);
      EXPECT_TRUE(!value.is_discarded() && obeys(value, schema)) << text;
    }
  }
}

TEST(JsonGrammar, AnyObjectParses) {
  const auto texts = some_texts({"\": ", "\\u", "d8"});
  const auto wish = wish_for(json_object_grammar(), texts);
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    const std::string text = random_answer(wish, *texts, seed);
    const Json value = Json::parse(text, nullptr, false);
    EXPECT_TRUE(value.is_object()) << text;
  }
}

TEST(JsonGrammar, RefusesWhatItCannotTranslate) {
  const auto limits = schema_limits(std::chrono::seconds(5));
  EXPECT_THAT(refusal([&] { json_schema_grammar("{", limits); }), HasSubstr("cannot be translated"));
  EXPECT_THAT(refusal([&] { json_schema_grammar(R"({"type": "nonsense"})", limits); }),
              HasSubstr("cannot be translated"));
  EXPECT_THAT(refusal([&] { json_schema_grammar(R"({"$ref": "https://example.org/x.json"})", limits); }),
              HasSubstr("cannot be translated"));
  EXPECT_THAT(refusal([&] { json_schema_grammar(R"({"$ref": "file:///etc/passwd"})", limits); }),
              HasSubstr("cannot be translated"));
  std::string deep, ends;
  for (int i = 0; i < 200000; ++i) {
    deep += R"({"items": )";
    ends += '}';
  }
  deep += "{}" + ends;
  EXPECT_THROW(json_schema_grammar(deep, limits), UserError);
}

TEST(JsonGrammar, TimeIsUp) {
  // Objects whose optional members may each be there or not, inside each other through references.
  std::string members;
  for (int i = 0; i < 3000; ++i)
    members += (i > 0 ? "," : "") + Json("k" + std::to_string(i)).dump() + R"(:{"type":"string"})";
  EXPECT_THAT(refusal([&] {
                json_schema_grammar(R"({"type":"object","properties":{)" + members + "}}",
                                    schema_limits(std::chrono::milliseconds(5)));
              }),
              HasSubstr("0.005 s"));
}

TEST(Sampler, GreedyTakesTheLikeliestThatTheGrammarAllows) {
  const auto texts = some_texts();
  SamplingOptions options;
  Sampler sampler(options);
  sampler.constrain(wish_for("root ::= [a-c] [x-z]", texts), std::vector<Token>{256});
  std::vector<float> logits(257);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 37) % 257);
  const auto best = [&](std::vector<Token> among) {
    return *std::max_element(among.begin(), among.end(), [&](Token a, Token b) {
      return logits[static_cast<std::size_t>(a)] < logits[static_cast<std::size_t>(b)];
    });
  };
  EXPECT_EQ(sampler.sample(logits), best({'a', 'b', 'c'}));
  std::vector<TokenProbability> distribution;
  sampler.distribution(logits, distribution);
  ASSERT_EQ(distribution.size(), 1u);
  Sampler copy = sampler.clone();
  copy.accept('a');
  EXPECT_EQ(copy.sample(logits), best({'x', 'y', 'z'}));
  EXPECT_EQ(sampler.sample(logits), best({'a', 'b', 'c'})) << "a clone has its own place";
  copy.accept('z');
  EXPECT_TRUE(copy.must_end());
  EXPECT_EQ(copy.sample(logits), 256) << "only the end is left";
}

TEST(Sampler, TheDistributionOfAGrammarIsThatOfItsTokensAlone) {
  const auto texts = some_texts();
  SamplingOptions options{.temperature = 2, .top_k = 0, .top_p = 1, .min_p = 0};
  Sampler sampler(options);
  sampler.constrain(wish_for("root ::= [a-e]*", texts), std::vector<Token>{256});
  std::vector<float> logits(257);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 37) % 257) / 64;
  std::vector<TokenProbability> got;
  sampler.distribution(logits, got);
  const std::vector<Token> tokens{'a', 'b', 'c', 'd', 'e', 256};
  double sum = 0;
  for (const Token token : tokens) sum += std::exp(static_cast<double>(logits[static_cast<std::size_t>(token)]) / 2);
  ASSERT_EQ(got.size(), tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(got[i].token, tokens[i]);
    EXPECT_NEAR(got[i].probability,
                std::exp(static_cast<double>(logits[static_cast<std::size_t>(tokens[i])]) / 2) / sum, 1e-6);
  }
}

TEST(Sampler, ABiasThatLeavesTheGrammarNoTokenIsAnError) {
  SamplingOptions options;
  options.logit_bias = {{'a', -std::numeric_limits<float>::infinity()}};
  Sampler sampler(options);
  sampler.constrain(wish_for("root ::= \"a\"", some_texts()), std::vector<Token>{256});
  EXPECT_THAT(refusal([&] { sampler.sample(std::vector<float>(257)); }), HasSubstr("grammar"));
}

}  // namespace
}  // namespace glimpse::text
