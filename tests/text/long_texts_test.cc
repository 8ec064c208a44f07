// Texts that make libllama's pre-tokenizers recurse or take the square of their length, for every pre-tokenizer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <string>

#include "glimpse/base/error.h"
#include "glimpse/base/sanitizers.h"
#include "glimpse/text/deep_stack.h"
#include "glimpse/text/pre_tokenizers.h"
#include "glimpse/text/string_set.h"
#include "glimpse/text/tokenizer.h"
#include "support.h"
#include "tests/support/test_names.h"

namespace glimpse::text::testing {
namespace {

using ::testing::HasSubstr;

/// One of each class that some expression tells from the others.
constexpr std::string_view kUnits[] = {"a",      "A",  "7",      " ",      "\n",     "!",      "'",         "/",
                                       "\u6587", "，", "\u0301", "\u00a0", "\u0e01", "\ue001", "\U0001F600"};

/// Those that a test takes; under sanitizers a fifth, others for each name.
std::vector<std::string_view> units_for(const std::string& name) {
  std::vector<std::string_view> units(std::begin(kUnits), std::end(kUnits));
  if (!kSanitized) return units;
  std::mt19937_64 random(std::hash<std::string>{}(name));
  std::shuffle(units.begin(), units.end(), random);
  units.resize(units.size() / 5);
  return units;
}

std::string repeated(std::string_view unit, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += unit;
  return text;
}

GgufPointer bpe_with(const std::string& pre) {
  GgufPointer context = small_bpe();
  gguf_set_val_str(context.get(), "tokenizer.ggml.pre", pre.c_str());
  return context;
}

Tokenizer tokenizer_with(const std::string& pre) {
  const GgufPointer context = bpe_with(pre);
  return Tokenizer(metadata_of(context.get()));
}

std::string refusal(const Tokenizer& tokenizer, std::string_view text) {
  try {
    tokenizer.encode(text, Special::as_text, false);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

class LongTexts : public ::testing::TestWithParam<std::string> {};

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const std::string_view name : pre_tokenizer_names()) all.emplace_back(name);
  return all;
}
INSTANTIATE_TEST_SUITE_P(PreTokenizers, LongTexts, ::testing::ValuesIn(names()), PrintedName());

TEST_P(LongTexts, IdsAreLibllamasWhereItSurvives) {
  const GgufPointer context = bpe_with(GetParam());
  const TemporaryFile file(context.get(), GetParam());
  const Pair pair(file.path());
  std::mt19937_64 random(7);
  std::string text;
  // Runs on both sides of the length from which on a stack is made, and long ones.
  for (int i = 0; i < 150; ++i) {
    constexpr std::size_t kLengths[] = {1, 1, 2, 3, 7, 30, 255, 256, 257, 700};
    text += repeated(kUnits[random() % std::size(kUnits)], kLengths[random() % std::size(kLengths)]);
    if (i % 10 == 0) text += "<think>hello hello's 12,345";
  }
  EXPECT_EQ(pair.ours.encode(text, Special::as_text, false), pair.reference.tokenize(text, false, false));
  for (const std::string_view unit : units_for(GetParam())) {
    const std::string run = "5" + repeated(unit, 2000) + "5";
    EXPECT_EQ(pair.ours.encode(run, Special::as_text, false), pair.reference.tokenize(run, false, false)) << unit;
  }
}

TEST_P(LongTexts, RunsOf30000ComeBackOrAreRefused) {
  const Tokenizer tokenizer = tokenizer_with(GetParam());
  for (const std::string_view unit : units_for(GetParam())) {
    SCOPED_TRACE(unit);
    const std::string text = "5" + repeated(unit, 30000) + "5";
    try {
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, Special::as_text, false)), text);
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("'" + GetParam() + "'"));
    }
  }
}

/// One name for each of libllama's ways to recurse.
class VeryLongTexts : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(PreTokenizers, VeryLongTexts,
                         ::testing::Values("smollm", "qwen2", "default", "tekken", "deepseek-v3", "bloom",
                                           "exaone-moe"),
                         PrintedName());

TEST_P(VeryLongTexts, RunsOf300000ComeBack) {
  const Tokenizer tokenizer = tokenizer_with(GetParam());
  for (const std::string_view unit : {"a", "7", " ", "!", "\n", "\u6587"}) {
    if (kSanitized && unit != "a" && unit != " ") continue;
    const std::string text = "5" + repeated(unit, 300000) + "5";
    EXPECT_TRUE(tokenizer.decode(tokenizer.encode(text, Special::as_text, false)) == text) << unit;
  }
}

TEST(TextLimits, ALongerRunIsRefusedInOneLine) {
  EXPECT_EQ(refusal(tokenizer_with("tekken"), "hello " + repeated("x", 400001)),
            "the text has 400001 letters in a row from byte 6 on; the model's pre-tokenizer 'tekken' takes at most "
            "400000; break the run");
  EXPECT_THAT(refusal(tokenizer_with("gpt-4o"), repeated(" ", 500000)), HasSubstr("500000 white space characters"));
  EXPECT_THAT(refusal(tokenizer_with("falcon"), repeated("!", 500000)), HasSubstr("500000 punctuation marks"));
  EXPECT_THAT(refusal(tokenizer_with("viking"), repeated("a1", 300000)), HasSubstr("without white space"));
  EXPECT_EQ(refusal(tokenizer_with("qwen2"), repeated("x", 400001)), "") << "it does not recurse";
}

TEST(TextLimits, RunsThatTakeTheSquareOfTheirLengthAreRefused) {
  EXPECT_EQ(
      refusal(tokenizer_with("superbpe"), "a" + repeated("1", 3000)),
      "the text has long runs of digits, the last of 3000 from byte 1 on; the model's pre-tokenizer 'superbpe' takes "
      "at most 8000000 as the sum of their lengths' squares; shorten them");
  EXPECT_THAT(refusal(tokenizer_with("deepseek-llm"), repeated("1" + repeated("\u3000", 100), 3000)),
              HasSubstr("runs of white space characters, the last of 100"));
  EXPECT_THAT(refusal(tokenizer_with("jais-2"), repeated(" ", 60000)), HasSubstr("of 60000"));
  EXPECT_EQ(refusal(tokenizer_with("superbpe"), repeated("12345678 ", 100000)), "");
}

TEST(TextLimits, AddedTokensThatEachCostACompiledExpressionAreRefused) {
  EXPECT_EQ(refusal(tokenizer_with("tekken"), repeated("<think>", 501)),
            "the text is cut into 501 pieces by tokens that its words hold; the model's tokenizer takes at most 500; "
            "remove some");
  EXPECT_EQ(refusal(tokenizer_with("qwen2"), repeated("<think>", 150000)), "") << "150,000 of them";
}

TEST(TextLimits, UnknownPreTokenizersAreRefused) {
  EXPECT_THROW(
      try { tokenizer_with("teken"); } catch (const UserError& error) {
        EXPECT_THAT(error.what(), HasSubstr("unknown pre-tokenizer 'teken'; did you mean 'tekken'?"));
        throw;
      },
      UserError);
}

TEST(SentencePiece, LongTextsAreCutWhereItDoesNotMatter) {
  for (const bool spaced : {true, false}) {
    const GgufPointer context = small_sentencepiece();
    gguf_set_val_bool(context.get(), "tokenizer.ggml.add_space_prefix", spaced);
    const TemporaryFile file(context.get(), "cuts");
    const Pair pair(file.path());
    std::mt19937_64 random(3);
    for (int round = 0; round < 60; ++round) {
      std::string text;
      while (text.size() < 5000) {
        constexpr std::string_view kParts[] = {"hello", "he", "l", " ",      "[",      "/",
                                               "[/",    "\n", "z", "\u6587", "\u2581", "o"};
        text += repeated(kParts[random() % std::size(kParts)], random() % 8 == 0 ? random() % 300 : 1);
      }
      ASSERT_EQ(pair.ours.encode(text, Special::as_text, false), pair.reference.tokenize(text, false, false)) << text;
    }
  }
}

TEST(SentencePiece, AMegabyteThatHasNoTokens) {
  const GgufPointer context = small_sentencepiece();
  const Tokenizer tokenizer(metadata_of(context.get()));
  for (const std::string_view unit : {"\n", "\u6587", "\U0001F600", "hello hello\n", "h"}) {
    const std::string text = repeated(unit, 1'000'000 / unit.size());
    EXPECT_TRUE(tokenizer.decode(tokenizer.encode(text, Special::as_text, false)) == text) << unit;
  }
}

TEST(SentencePiece, CharactersThatCannotBeCutApartAreLimited) {
  const GgufPointer context = small_sentencepiece();
  Metadata metadata = metadata_of(context.get());
  MetaArray& tokens = std::get<MetaArray>(metadata.values.at("tokenizer.ggml.tokens").value);
  // "qqzz" is a token, "q" is none and becomes a byte.
  tokens.strings.back() = "qqzz";
  const Tokenizer tokenizer(metadata);
  EXPECT_EQ(refusal(tokenizer, repeated("q", 10000)), "");
  EXPECT_THAT(refusal(tokenizer, repeated("q", 1'000'000)), HasSubstr("that the model's vocabulary has no token for"));
}

/// Added tokens that hold each other, begin with a space, are of one length, and swallow spaces.
TEST(AddedTokens, AreCutOutAsLibllamaDoes) {
  for (const bool strips : {false, true}) {
    // libllama's space before a text is spelled as the one that begins no added token; no vocabulary adds both.
    const char* spaced = strips ? " x" : "\u2581x";
    for (GgufPointer (*base)() : {small_bpe, small_sentencepiece}) {
      const GgufPointer context = base();
      const std::int64_t id = gguf_find_key(context.get(), "tokenizer.ggml.tokens");
      std::vector<std::string> tokens;
      for (std::size_t i = 0; i < gguf_get_arr_n(context.get(), id); ++i) {
        tokens.emplace_back(gguf_get_arr_str(context.get(), id, i));
      }
      const std::int64_t types_id = gguf_find_key(context.get(), "tokenizer.ggml.token_type");
      const auto* given = static_cast<const std::int32_t*>(gguf_get_arr_data(context.get(), types_id));
      std::vector<std::int32_t> types(given, given + tokens.size());
      for (const char* text : {"xy", "yx", "xyx", spaced, "  ", "yxy", "</s>", "<s>", "<unk>", "<|endoftext|>"}) {
        if (std::find(tokens.begin(), tokens.end(), text) != tokens.end()) continue;
        tokens.emplace_back(text);
        types.push_back(text[0] == '<' ? 3 : 4);
      }
      const std::vector<float> scores(tokens.size(), -1.0f);
      set_strings(context.get(), "tokenizer.ggml.tokens", tokens);
      gguf_set_arr_data(context.get(), "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
      gguf_set_arr_data(context.get(), "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(), scores.size());
      // Under this name libllama has tokens swallow the white space behind them.
      if (strips) gguf_set_val_str(context.get(), "general.name", "phi-3");
      const TemporaryFile file(context.get(), "added");
      const Pair pair(file.path());
      std::mt19937_64 random(5);
      for (int round = 0; round < 3000; ++round) {
        std::string text;
        for (int i = 0; i < 12; ++i) {
          constexpr std::string_view kParts[] = {"x", "y",     " ",      "h",  "<s>", "</s>",
                                                 "<", "hello", "\u2581", "\n", "xyx"};
          text += kParts[random() % std::size(kParts)];
        }
        ASSERT_EQ(pair.ours.encode(text, Special::as_text, false), pair.reference.tokenize(text, false, false))
            << '"' << text << '"';
        ASSERT_EQ(pair.ours.encode(text, Special::as_tokens, false), pair.reference.tokenize(text, false, true))
            << '"' << text << '"';
      }
    }
  }
}

TEST(AddedTokens, ManyAreNotTheSquareOfTheirNumber) {
  const Tokenizer tokenizer = tokenizer_with("smollm");
  const std::string text = repeated("<|im_start|>x<think> ", 5000);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, Special::as_text, false)), text);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, Special::as_tokens, false), true), text);
}

TEST(StringSet, FindsWhatFindFinds) {
  std::mt19937_64 random(9);
  const auto word = [&](std::size_t most) {
    std::string text;
    for (std::size_t i = random() % most + 1; i > 0; --i) text += static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int round = 0; round < 500; ++round) {
    StringSet set;
    std::vector<std::string> strings;
    for (std::size_t i = random() % 12; i > 0; --i) strings.push_back(word(6));
    for (const std::string& string : strings) set.add(string);
    set.finish();
    const std::string text = word(40);
    std::vector<bool> found(strings.size());
    set.search(text, found);
    for (std::size_t i = 0; i < strings.size(); ++i) {
      ASSERT_EQ(found[i], text.find(strings[i]) != std::string::npos) << strings[i] << " in " << text;
    }
  }
}

int depth_of(int left) {
  volatile char frame[1024] = {};
  frame[0] = 1;
  return left == 0 ? frame[0] : depth_of(left - 1) + frame[0];
}

TEST(DeepStack, HoldsWhatWasAskedForAndHandsErrorsOn) {
  int depth = 0;
  on_deep_stack(std::size_t{256} << 20, [&] { depth = depth_of(100'000); });
  EXPECT_EQ(depth, 100'001);
  EXPECT_THROW(on_deep_stack(1 << 20, [] { throw UserError("from there"); }), UserError);
  EXPECT_THROW(on_deep_stack(std::size_t{1} << 60, [] {}), UserError) << "more than there is";
}

}  // namespace
}  // namespace glimpse::text::testing
