#include "glimpse/text/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "glimpse/base/error.h"
#include "glimpse/base/log.h"
#include "glimpse/text/tokenizer.h"
#include "support.h"

namespace glimpse::text::testing {
namespace {

using ::testing::HasSubstr;

MetaArray& array_at(Metadata& metadata, const char* key) {
  return std::get<MetaArray>(metadata.values.at(key).value);
}

struct BadCase {
  const char* name;
  GgufPointer (*base)();
  std::function<void(Metadata&)> damage;
  const char* message;
};

void PrintTo(const BadCase& row, std::ostream* out) {
  *out << row.name;
}

class BadVocabulary : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadVocabulary, IsOneClearError) {
  const GgufPointer context = GetParam().base();
  Metadata metadata = metadata_of(context.get());
  ASSERT_NO_THROW(Tokenizer{metadata});
  GetParam().damage(metadata);
  try {
    const Tokenizer tokenizer(metadata);
    FAIL() << "taken";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr(GetParam().message));
  }
}

constexpr auto kTokens = "tokenizer.ggml.tokens";
constexpr auto kTypes = "tokenizer.ggml.token_type";
constexpr auto kScores = "tokenizer.ggml.scores";
constexpr auto kMerges = "tokenizer.ggml.merges";

auto erase(const char* key) {
  return [key](Metadata& m) { m.values.erase(key); };
}
auto set(const char* key, MetaValue value) {
  return [key, value](Metadata& m) { m.values[key] = value; };
}

INSTANTIATE_TEST_SUITE_P(
    Cases, BadVocabulary,
    ::testing::Values(
        BadCase{"no_model", small_bpe, erase("tokenizer.ggml.model"), "no 'tokenizer.ggml.model'"},
        BadCase{"model_of_another_type", small_bpe, set("tokenizer.ggml.model", {MetaType::u32, std::int64_t{3}}),
                "'tokenizer.ggml.model' is not a string"},
        BadCase{"unknown_model", small_bpe, set("tokenizer.ggml.model", {MetaType::string, std::string_view("bert")}),
                "'bert' is not supported"},
        BadCase{"no_vocabulary", small_bpe, set("tokenizer.ggml.model", {MetaType::string, std::string_view("no_vocab")}),
                "'no_vocab' is not supported"},
        BadCase{"unknown_pretokenizer", small_bpe, set("tokenizer.ggml.pre", {MetaType::string, std::string_view("zzz")}), "zzz"},
        BadCase{"pretokenizer_of_another_type", small_bpe, set("tokenizer.ggml.pre", {MetaType::f32, 1.0}), "not a string"},
        BadCase{"no_tokens", small_bpe, erase(kTokens), "missing or empty"},
        BadCase{"empty_tokens", small_bpe, [](Metadata& m) { array_at(m, kTokens).strings.clear(); }, "missing or empty"},
        BadCase{"tokens_of_another_type", small_bpe, set(kTokens, {MetaType::array, MetaArray{MetaType::i32, {}, {1, 2}, {}}}),
                "array of strings"},
        BadCase{"tokens_no_array", small_bpe, set(kTokens, {MetaType::string, std::string_view("a")}), "array of strings"},
        BadCase{"token_twice", small_bpe, [](Metadata& m) { array_at(m, kTokens).strings[9] = "he"; }, "'he' twice"},
        BadCase{"two_tokens_cut_at_nul", small_bpe,
                [](Metadata& m) {
                  array_at(m, kTokens).strings[9] = std::string_view("q1\0a", 4);
                  array_at(m, kTokens).strings[10] = std::string_view("q1\0b", 4);
                },
                "twice"},
        BadCase{"empty_token_named_like_another", small_bpe,
                [](Metadata& m) {
                  array_at(m, kTokens).strings[9] = "";
                  array_at(m, kTokens).strings[10] = "[EMPTY_9]";
                },
                "twice"},
        BadCase{"few_types", small_bpe, [](Metadata& m) { array_at(m, kTypes).integers.pop_back(); }, "has 265 entries"},
        BadCase{"types_of_another_type", small_bpe, [](Metadata& m) { array_at(m, kTypes).element = MetaType::u8; },
                "array of 32-bit integers"},
        BadCase{"no_merges", small_bpe, erase(kMerges), "no 'tokenizer.ggml.merges'"},
        BadCase{"merges_of_another_type", small_bpe, set(kMerges, {MetaType::array, MetaArray{MetaType::f32, {}, {}, {1.0}}}),
                "array of strings"},
        BadCase{"few_scores", small_sentencepiece, [](Metadata& m) { array_at(m, kScores).reals.resize(3); }, "has 3 entries"},
        BadCase{"scores_of_strings", small_sentencepiece,
                set(kScores, {MetaType::array, MetaArray{MetaType::string, {"a"}, {}, {}}}), "32-bit numbers"},
        BadCase{"score_nan", small_sentencepiece,
                [](Metadata& m) { array_at(m, kScores).reals[5] = std::numeric_limits<double>::quiet_NaN(); },
                "not a number at 5"},
        BadCase{"byte_token_too_short", small_sentencepiece, [](Metadata& m) { array_at(m, kTokens).strings[7] = "<"; },
                "cannot be used"},
        BadCase{"flag_no_flag", small_bpe, set("tokenizer.ggml.add_bos_token", {MetaType::u32, std::int64_t{7}}),
                "true or false"},
        BadCase{"id_no_number", small_bpe, set("tokenizer.ggml.eos_token_id", {MetaType::string, std::string_view("2")}),
                "not a token id"}),
    [](const auto& instance) { return instance.param.name; });

TEST(Vocabulary, IdsOutOfRangeAreNotUsed) {
  for (const std::int64_t id : {std::int64_t{-1}, std::int64_t{100'000}, std::int64_t{1} << 40}) {
    const GgufPointer context = small_sentencepiece();
    Metadata metadata = metadata_of(context.get());
    metadata.values["tokenizer.ggml.bos_token_id"] = {MetaType::i64, id};
    metadata.values["tokenizer.ggml.padding_token_id"] = {MetaType::i64, id};
    const Tokenizer tokenizer(metadata);
    EXPECT_EQ(tokenizer.bos(), 1) << "libllama's default for SentencePiece";
    EXPECT_EQ(tokenizer.decode(tokenizer.encode("hello", Special::as_text, true)), "hello");
  }
}

TEST(Vocabulary, FlagsAndIdsOfOtherIntegerTypesAreTaken) {
  const GgufPointer context = small_bpe();
  Metadata metadata = metadata_of(context.get());
  metadata.values["tokenizer.ggml.add_bos_token"] = {MetaType::u8, std::int64_t{1}};
  metadata.values["tokenizer.ggml.bos_token_id"] = {MetaType::i64, std::int64_t{0}};
  const Tokenizer tokenizer(metadata);
  EXPECT_TRUE(tokenizer.adds_bos());
  EXPECT_EQ(tokenizer.bos(), 0);
}

TEST(Vocabulary, MissingBytesAreAnErrorOfTheTextNotACrash) {
  const GgufPointer context = small_sentencepiece();
  Metadata metadata = metadata_of(context.get());
  // The byte tokens become words, so that a character without a token of its own has nothing to fall back on.
  std::vector<std::string> words;
  for (int i = 0; i < 256; ++i) words.push_back("word" + std::to_string(i));
  for (int i = 0; i < 256; ++i) {
    array_at(metadata, kTokens).strings[static_cast<std::size_t>(3 + i)] = words[static_cast<std::size_t>(i)];
    array_at(metadata, kTypes).integers[static_cast<std::size_t>(3 + i)] = 1;
  }
  const Tokenizer tokenizer(metadata);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("hello", Special::as_text, false)), "hello");
  EXPECT_THROW(tokenizer.encode("\u6587", Special::as_text, false), UserError);
}

TEST(Vocabulary, NothingIsPrinted) {
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  const GgufPointer context = small_bpe();
  const Tokenizer tokenizer(metadata_of(context.get()));
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace glimpse::text::testing
