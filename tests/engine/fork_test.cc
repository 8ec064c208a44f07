// What a fork under another budget takes over: key indices and low-rank keys that it would build alike, and only those.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "glimpse/base/error.h"
#include "tests/engine/gates.h"
#include "tests/engine/session_support.h"
#include "tests/support/test_names.h"

namespace glimpse::engine {
namespace {

constexpr std::size_t kPrompt = 400, kDecoded = 40, kAll = kPrompt + 2 * kDecoded;

struct Case {
  const char* policy;
  std::map<std::string, std::string> extra;
  bool while_decoding = true;  ///< what is generated is taken in alike at every budget
};

void PrintTo(const Case& value, std::ostream* out) {
  *out << value.policy;
  for (const auto& [key, text] : value.extra) *out << " " << key << "=" << text;
}

class ForkedBudgets : public testing::TestWithParam<Case> {
 protected:
  ForkedBudgets()
      : engine_(options_for(reference::test_model("llama"), KvType::bf16)),
        elsewhere_(options_for(reference::test_model("llama"), KvType::bf16)) {
    tokens_ = random_tokens(kAll, engine_.tokenizer().size());
  }

  plan::Plan plan(std::string_view tokens) const {
    policies::PolicyOptions options = budget(tokens, GetParam().extra);
    add_needed(GetParam().policy, reference::test_model("llama"), options);
    return make(engine_, GetParam().policy, options);
  }

  std::span<const Token> part(std::size_t first, std::size_t count) const {
    return std::span(tokens_).subspan(first, count);
  }

  /// A fork of `from` under `to` decodes as one that has built everything itself, from the same rows on other pages,
  /// and as one that takes over what hangs on the pages and nothing else. Returns the time that it took to build
  /// indices.
  double expect_alike(const Sequence& from, const plan::Plan& to, std::size_t first) {
    const std::filesystem::path rows = session_path("rows");
    const Sequence bare = from.fork(make(engine_, "full"));
    bare.save(rows);
    Sequence alone = elsewhere_.load(rows, to);
    Sequence late = bare.fork(to);
    Sequence fork = from.fork(to);
    const auto expected = decoded(alone, part(first, kDecoded));
    EXPECT_TRUE(same_bits(expected, decoded(late, part(first, kDecoded))));
    EXPECT_TRUE(same_bits(expected, decoded(fork, part(first, kDecoded))));
    EXPECT_GT(alone.stats().index_build_s, 0);
    EXPECT_GT(late.stats().index_build_s, 0);
    EXPECT_EQ(late.stats().index_memory, fork.stats().index_memory);
    return fork.stats().index_build_s;
  }

  Engine engine_, elsewhere_;
  std::vector<Token> tokens_;
};

TEST_P(ForkedBudgets, TakeOverWhatAPromptBuilt) {
  Sequence source = engine_.open(plan("100"));
  source.prefill(part(0, kPrompt));
  for (const char* other : {"64", "160", "30%"}) {
    SCOPED_TRACE(other);
    EXPECT_EQ(expect_alike(source, plan(other), kPrompt), 0);
  }
}

TEST_P(ForkedBudgets, AreRightAfterDecodedTokens) {
  Sequence source = engine_.open(plan("100"));
  source.prefill(part(0, kPrompt));
  decoded(source, part(kPrompt, kDecoded));
  for (const char* other : {"64", "160", "30%"}) {
    SCOPED_TRACE(other);
    const double built = expect_alike(source, plan(other), kPrompt + kDecoded);
    EXPECT_EQ(built == 0, GetParam().while_decoding);
  }
}

/// A short prompt behind decoded tokens goes into what was taken over, as into what was built late.
TEST_P(ForkedBudgets, TakeAnotherPrompt) {
  Sequence source = engine_.open(plan("100"));
  source.prefill(part(0, kPrompt));
  decoded(source, part(kPrompt, kDecoded));
  Sequence again = source.fork(plan("100"));
  Sequence other = source.fork(plan("160")).fork(plan("100"));
  for (Sequence* one : {&again, &other}) one->prefill(part(kPrompt + kDecoded, 20));
  const auto expected = decoded(again, part(kPrompt + kDecoded + 20, 20));
  const auto got = decoded(other, part(kPrompt + kDecoded + 20, 20));
  EXPECT_TRUE(same_bits(expected, got));
}

TEST_P(ForkedBudgets, MayCoverThePromptAndNotWhatFollows) {
  Sequence source = engine_.open(plan("100"));
  source.prefill(part(0, kPrompt));
  expect_alike(source, plan("420"), kPrompt);
  Sequence covered = engine_.open(plan("420"));
  covered.prefill(part(0, kPrompt));
  expect_alike(covered, plan("100"), kPrompt);
}

INSTANTIATE_TEST_SUITE_P(Indices, ForkedBudgets,
                         testing::Values(Case{"quest", {}}, Case{"quest", {{"score", "meanstd"}}}, Case{"arkvale", {}},
                                         Case{"clusterkv", {}}, Case{"seer", {}}, Case{"lychee-cluster", {}, false},
                                         Case{"lychee-cluster", {{"chunks", "fixed"}}, false},
                                         Case{"shadowkv", {{"rank", "12"}, {"outliers", "2"}}}),
                         PrintedName());

/// Another option of the same index is another index.
TEST(ForkedIndices, OfAnotherMakeAreBuiltAgain) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  const std::vector<Token> tokens = random_tokens(kAll, engine.tokenizer().size());
  const auto quest = [&](const char* score) { return make(engine, "quest", budget("100", {{"score", score}})); };
  Sequence source = engine.open(quest("minmax"));
  source.prefill(std::span(tokens).first(kPrompt));
  Sequence other = source.fork(quest("meanstd"));
  other.decode(3);
  EXPECT_GT(other.stats().index_build_s, 0);
  Sequence bare = source.fork(make(engine, "full"));
  Sequence late = bare.fork(quest("meanstd"));
  const auto expected = late.decode(3);
  const std::vector<float> kept(expected.begin(), expected.end());
  Sequence again = source.fork(quest("meanstd"));
  const auto got = again.decode(3);
  EXPECT_TRUE(same_bits(kept, got));
}

TEST(ForkedIndices, OfBlocksAreMadeOnce) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  const std::vector<Token> tokens = random_tokens(kAll, engine.tokenizer().size());
  const auto quest = [&](const char* tokens_read) { return make(engine, "quest", budget(tokens_read)); };
  Sequence source = engine.open(quest("100"));
  source.prefill(std::span(tokens).first(kPrompt));
  source.decode(2);
  const std::int64_t made = engine.stats().digests_made;
  EXPECT_GT(made, 0);
  std::vector<Sequence> forks;
  forks.push_back(source.fork(quest("100")));
  forks.push_back(source.fork(quest("64")));
  forks.push_back(source.fork(quest("64"), 390));
  forks.push_back(source.fork(make(engine, "full")).fork(quest("100")));
  for (Sequence& fork : forks) {
    fork.decode(3);
    EXPECT_GT(fork.stats().index_bytes, 0);
  }
  EXPECT_EQ(engine.stats().digests_made, made);
}

/// The prompt's heat is that of every budget until something is decoded.
TEST(ForkedHeat, OfAPromptIsThatOfAnotherBudget) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  const std::vector<Token> tokens = random_tokens(kAll, engine.tokenizer().size());
  for (const char* of : {"sequence", "layer"}) {
    SCOPED_TRACE(of);
    const auto plan = [&](const char* size, const char* decay) {
      return make(engine, "evosparse", budget(size, {{"heat", of}, {"lambda", decay}}));
    };
    Sequence source = engine.open(plan("128", "0.9"));
    source.prefill(std::span(tokens).first(kPrompt));
    for (const char* size : {"160", "30%", "2000"}) {
      SCOPED_TRACE(size);
      Sequence fork = source.fork(plan(size, "0.9")), alone = engine.open(plan(size, "0.9"));
      alone.prefill(std::span(tokens).first(kPrompt));
      EXPECT_EQ(fork.heat(3), alone.heat(3));
      const auto expected = decoded(alone, std::span(tokens).subspan(kPrompt, kDecoded));
      EXPECT_TRUE(same_bits(expected, decoded(fork, std::span(tokens).subspan(kPrompt, kDecoded))));
    }
    const auto empty = [](const Sequence& sequence) {
      const std::vector<float> heat = sequence.heat(3);
      return std::all_of(heat.begin(), heat.end(), [](float each) { return each == 0; });
    };
    EXPECT_FALSE(empty(source));
    EXPECT_TRUE(empty(source.fork(plan("160", "0.8")))) << "it fades in another way";
    source.decode(1);
    EXPECT_TRUE(empty(source.fork(plan("160", "0.9")))) << "a decoded token read what one budget chose";
  }
}

/// A fork at an earlier length against a sequence that never took more.
class ForkedEarlier : public testing::TestWithParam<const char*> {
 protected:
  ForkedEarlier() : engine_(options_for(reference::test_model("llama"), KvType::bf16)) {
    tokens_ = random_tokens(500, engine_.tokenizer().size());
    policies::PolicyOptions options;
    if (std::string_view(GetParam()) != "full") options = budget("64");
    plan_ = make(engine_, GetParam(), options);
  }

  std::span<const Token> part(std::size_t first, std::size_t count) const {
    return std::span(tokens_).subspan(first, count);
  }

  Engine engine_;
  std::vector<Token> tokens_;
  plan::Plan plan_;
};

TEST_P(ForkedEarlier, InsideThePromptGoesOnAsItsPrefix) {
  Sequence source = engine_.open(plan_), prefix = engine_.open(plan_);
  source.prefill(part(0, 203));  // in pieces: the bits of K and V are those of their pass
  source.prefill(part(203, 150));
  decoded(source, part(353, 20));
  prefix.prefill(part(0, 203));
  const std::int64_t free = engine_.stats().pages_free;
  Sequence fork = source.fork(plan_, 203);
  EXPECT_EQ(engine_.stats().pages_free, free) << "pages are shared";
  EXPECT_EQ(fork.length(), 203);
  EXPECT_TRUE(std::equal(fork.tokens().begin(), fork.tokens().end(), tokens_.begin(), tokens_.begin() + 203));
  Sequence again = source.fork(plan_, 203), same = prefix.fork(plan_);
  EXPECT_TRUE(same_bits(decoded(fork, part(400, 20)), decoded(prefix, part(400, 20))));
  again.prefill(part(250, 90));
  same.prefill(part(250, 90));
  EXPECT_TRUE(same_bits(decoded(again, part(400, 20)), decoded(same, part(400, 20))));
}

TEST_P(ForkedEarlier, BehindThePromptGoesOnAsItWasThere) {
  Sequence source = engine_.open(plan_), shorter = engine_.open(plan_);
  source.prefill(part(0, 353));
  shorter.prefill(part(0, 353));
  decoded(source, part(353, 40));
  decoded(shorter, part(353, 15));
  Sequence fork = source.fork(plan_, 368);
  EXPECT_TRUE(same_bits(decoded(fork, part(430, 20)), decoded(shorter, part(430, 20))));
  EXPECT_TRUE(same_bits(decoded(source, part(393, 5)),
                        [&] {
                          Sequence anew = engine_.open(plan_);
                          anew.prefill(part(0, 353));
                          decoded(anew, part(353, 40));
                          return decoded(anew, part(393, 5));
                        }()))
      << "the source is as it was";
}

INSTANTIATE_TEST_SUITE_P(Methods, ForkedEarlier,
                         testing::Values("full", "tidal", "kascade", "quest", "lychee-cluster", "clusterkv",
                                         "shadowkv"),
                         PrintedName());

TEST(ForkedEarlierErrors, SayWhichLengthsThereAre) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  const std::vector<Token> tokens = random_tokens(300, engine.tokenizer().size());
  const plan::Plan full = make(engine, "full", {}), streaming = make(engine, "streaming", budget("48"));
  EXPECT_EQ(engine.open(full).fork(full).length(), 0) << "of nothing there is a fork, too";
  Sequence whole = engine.open(full), forgets = engine.open(streaming);
  whole.prefill(tokens);
  for (const std::int64_t length : {-1, 0, 301}) {
    EXPECT_THAT([&] { whole.fork(full, length); },
                testing::ThrowsMessage<UserError>(testing::HasSubstr("that has 300; give 1 to 300")));
  }
  forgets.prefill(tokens);
  forgets.decode(1);
  forgets.decode(2);
  EXPECT_THAT([&] { forgets.fork(streaming, 100); },
              testing::ThrowsMessage<UserError>(testing::HasSubstr("has forgotten tokens, so the first 100")));
  EXPECT_EQ(forgets.fork(streaming, 302).length(), 302);
}

}  // namespace
}  // namespace glimpse::engine
