// Prompts in chunks, in pieces, and after decoding: what attention keeps of them is that of the whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "tests/engine/recording.h"

namespace glimpse::engine {
namespace {

Engine& engine_of_chunk(int chunk) {
  static std::map<int, std::unique_ptr<Engine>> engines;
  std::unique_ptr<Engine>& engine = engines[chunk];
  if (!engine) {
    EngineOptions options = options_for(reference::test_model("llama"), KvType::f32, 1);
    options.context = 2304;
    options.prefill_chunk = chunk;
    engine = std::make_unique<Engine>(options);
  }
  return *engine;
}

std::vector<Token> tokens_for(const Engine& engine, std::size_t count) {
  return random_tokens(count, engine.tokenizer().size(), 31);
}

double sum_of(const methods::Scores& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

void expect_near(const methods::Scores& values, const methods::Scores& expected, double share) {
  ASSERT_EQ(values.size(), expected.size());
  double apart = 0;
  for (std::size_t i = 0; i < values.size(); ++i) apart += std::abs(values[i] - expected[i]);
  EXPECT_GT(sum_of(expected), 0);
  EXPECT_LT(apart, share * sum_of(expected));
}

/// What a prompt leaves; `pieces` end where they say.
StateCopy after_prompt(int chunk, const std::string& policy, const std::vector<std::size_t>& ends) {
  Engine& engine = engine_of_chunk(chunk);
  const plan::Plan plan = make(engine, policy, budget("160"));
  Sequence sequence = engine.open(plan);
  const std::vector<Token> tokens = tokens_for(engine, ends.back());
  std::size_t first = 0;
  for (const std::size_t end : ends) {
    sequence.prefill(std::span(tokens).subspan(first, end - first));
    first = end;
  }
  return state_of(sequence, plan);
}

TEST(ChunkedPrompts, AreObservedInEveryLayer) {
  const StateCopy whole = after_prompt(512, "h2o", {300});
  const StateCopy chunks = after_prompt(128, "h2o", {300});
  for (std::size_t head = 0; head < whole.statistic.size(); ++head) {
    SCOPED_TRACE(head);
    EXPECT_NEAR(sum_of(whole.statistic[head]), 3.0 * 300, 0.1);  // three query heads a KV head
    expect_near(chunks.statistic[head], whole.statistic[head], 1e-4);
  }
}

TEST(ChunkedPrompts, SeedTheSameHeat) {
  // The last chunk has 8 rows: 24 of the 32 that are observed lie in the one before.
  const StateCopy whole = after_prompt(512, "evosparse", {392});
  const StateCopy chunks = after_prompt(128, "evosparse", {392});
  expect_near(chunks.heat.at(0), whole.heat.at(0), 1e-4);
}

TEST(ChunkedPrompts, SeedTheSameHeatBehindALongContext) {
  // The last chunk has 40 rows, whose attention is divided by keys.
  const StateCopy whole = after_prompt(700, "evosparse", {2100});
  expect_near(after_prompt(515, "evosparse", {2100}).heat.at(0), whole.heat.at(0), 1e-4);
}

TEST(ChunkedPrompts, AreObservedBehindALongContext) {
  for (const char* policy : {"h2o", "tova"}) {
    const StateCopy whole = after_prompt(700, policy, {2100});
    const StateCopy chunks = after_prompt(515, policy, {2100});
    ASSERT_EQ(chunks.statistic.size(), whole.statistic.size());
    for (std::size_t head = 0; head < whole.statistic.size(); ++head) {
      SCOPED_TRACE(std::string(policy) + ", " + std::to_string(head));
      expect_near(chunks.statistic[head], whole.statistic[head], 1e-4);
    }
  }
}

double seed_mass(int rows) {
  double mass = 0;
  for (int age = 0; age < rows; ++age) mass += std::pow(0.99609375, age);
  return mass;
}

TEST(PromptPieces, LeaveTheHeatOfTheLastRows) {
  const StateCopy whole = after_prompt(512, "evosparse", {392});
  EXPECT_NEAR(sum_of(whole.heat.at(0)), seed_mass(32), 1e-3);
  expect_near(after_prompt(512, "evosparse", {200, 392}).heat.at(0), whole.heat.at(0), 1e-4);
  expect_near(after_prompt(512, "evosparse", {100, 200, 300, 360, 392}).heat.at(0), whole.heat.at(0), 1e-4);
  // A last piece of fewer rows goes on from what the one before left.
  EXPECT_NEAR(sum_of(after_prompt(512, "evosparse", {382, 392}).heat.at(0)), seed_mass(42), 1e-3);
}

TEST(LaterPrompts, LetTheHeatFadeOnce) {
  Engine& engine = engine_of_chunk(128);
  const plan::Plan plan = make(engine, "evosparse", budget("160"));
  const std::vector<Token> tokens = tokens_for(engine, 600);
  for (const int rows : {160, 40, 10}) {
    Sequence sequence = engine.open(plan);
    sequence.prefill(std::span(tokens).first(300));
    for (std::size_t i = 300; i < 306; ++i) sequence.decode(tokens[i]);
    const double before = sum_of(state_of(sequence, plan).heat.at(0));
    sequence.prefill(std::span(tokens).subspan(306, static_cast<std::size_t>(rows)));
    const int observed = std::min(rows, 32);
    EXPECT_NEAR(sum_of(state_of(sequence, plan).heat.at(0)),
                before * std::pow(0.99609375, observed) + seed_mass(observed), 2e-3)
        << rows;
  }
}

/// The sets of some steps: [step, layer, head].
std::vector<methods::Set> sets_of(Sequence& sequence, std::span<const Token> tokens) {
  std::vector<methods::Set> sets;
  sequence.on_sets([&](const SetTrace& trace) { sets.emplace_back(trace.tokens.begin(), trace.tokens.end()); });
  for (const Token token : tokens) sequence.decode(token);
  sequence.on_sets({});
  return sets;
}

class IndexedPrompts : public testing::TestWithParam<const char*> {
 protected:
  /// Pieces of whole chunks: the passes are the same, and so are the keys, bit for bit.
  static constexpr int kChunk = 64;
  static constexpr std::size_t kPrompt = 320;
  Engine& engine_ = engine_of_chunk(kChunk);
  std::vector<Token> tokens_ = tokens_for(engine_, 700);
  // ShadowKV's usual outliers are more than this prompt has chunks to spare.
  plan::Plan plan_ = make(engine_, GetParam(),
                          std::string(GetParam()) == "shadowkv" ? budget("128", {{"outliers", "2"}}) : budget("128"));

  std::vector<methods::Set> after(const std::vector<std::size_t>& ends) {
    Sequence sequence = engine_.open(plan_);
    std::size_t first = 0;
    for (const std::size_t end : ends) {
      sequence.prefill(std::span(tokens_).subspan(first, end - first));
      first = end;
    }
    return sets_of(sequence, std::span(tokens_).subspan(kPrompt, 8));
  }
};

TEST_P(IndexedPrompts, ComeInPiecesAsWhole) {
  const std::vector<methods::Set> whole = after({kPrompt});
  EXPECT_TRUE(std::any_of(whole.begin(), whole.end(), [](const methods::Set& set) { return !set.empty(); }));
  EXPECT_EQ(whole, after({128, kPrompt}));
  EXPECT_EQ(whole, after({64, 128, 192, 256, kPrompt}));
}

/// A later prompt that doubles the text counts, with all before it, as prompt.
TEST_P(IndexedPrompts, ThatDoubleTheTextAreIndexedAnew) {
  Sequence turns = engine_.open(plan_);
  turns.prefill(std::span(tokens_).first(256));
  turns.decode(tokens_[256]);
  turns.prefill(std::span(tokens_).subspan(257, 256));
  Sequence late = turns.fork(make(engine_, "full")).fork(plan_);  // its indices are made in its first step
  const std::span<const Token> next = std::span(tokens_).subspan(513, 6);
  const std::vector<methods::Set> sets = sets_of(turns, next);
  EXPECT_EQ(sets, sets_of(late, next));
  if (std::string(GetParam()) == "lychee-cluster") return;  // chunks are not equally long
  Sequence one = engine_.open(plan_);
  one.prefill(std::span(tokens_).first(513));
  const std::vector<methods::Set> expected = sets_of(one, next);
  ASSERT_EQ(sets.size(), expected.size());
  for (std::size_t i = 0; i < sets.size(); ++i) EXPECT_EQ(sets[i].size(), expected[i].size()) << i;
}

INSTANTIATE_TEST_SUITE_P(Methods, IndexedPrompts,
                         testing::Values("lychee-cluster", "clusterkv", "shadowkv", "quest", "arkvale"),
                         [](const auto& row) {
                           std::string name = row.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(LaterPrompts, OfAFewTokensAreLandmarksToo) {
  Engine& engine = engine_of_chunk(64);
  const std::vector<Token> tokens = tokens_for(engine, 700);
  Sequence sequence = engine.open(make(engine, "shadowkv", budget("64", {{"outliers", "2"}, {"rank", "8"}})));
  sequence.prefill(std::span(tokens).first(400));
  sequence.decode(tokens[400]);
  sequence.prefill(std::span(tokens).subspan(401, 128));
  // Beside the budget: the window of 32 in whole chunks, what no chunk holds yet, and 2 outliers.
  for (const methods::Set& set : sets_of(sequence, std::span(tokens).subspan(529, 4))) {
    EXPECT_LE(set.size(), 64U + 5 * 8 + 8 + 4 + 16);
  }
}

/// The mean over heads, where they decide together; else as it is.
std::vector<methods::Scores> by_decision(const plan::Plan& plan, const std::vector<methods::Scores>& heads, int layer) {
  const auto count = static_cast<std::size_t>(plan.shape.kv_heads);
  const auto first = heads.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(layer) * count);
  std::vector<methods::Scores> own(first, first + static_cast<std::ptrdiff_t>(count));
  if (plan.retentions.at(0).per != plan::SetPer::layer) return own;
  return {methods::mean(own)};
}

class ForgettingLater : public testing::TestWithParam<const char*> {};

/// The rows of a later prompt are decoded once more, densely, over what the heads still hold, and their probabilities
/// added up by position: by transcription what the prompt leaves and what the next step keeps.
TEST_P(ForgettingLater, CountsALaterPromptByPosition) {
  constexpr std::int64_t kBudget = 64;
  constexpr std::size_t kFirst = 200, kDecoded = 12, kSecond = 24;
  const bool last_only = std::string(GetParam()) == "tova";
  Engine& engine = engine_of_chunk(128);
  const plan::Plan plan = make(engine, GetParam(), budget("64"));
  const plan::ModelShape& shape = plan.shape;
  const std::vector<Token> tokens = tokens_for(engine, 300);
  Sequence sequence = engine.open(plan);
  sequence.prefill(std::span(tokens).first(kFirst));
  for (std::size_t i = 0; i < kDecoded; ++i) sequence.decode(tokens[kFirst + i]);
  const StateCopy before = state_of(sequence, plan);
  const std::span<const Token> second = std::span(tokens).subspan(kFirst + kDecoded, kSecond);

  std::vector<methods::Scores> sums = before.statistic;
  for (methods::Scores& sum : sums) sum.resize(kFirst + kDecoded + kSecond, 0.0);
  Sequence dense = sequence.fork(make(engine, "full"));
  dense.on_sets([&](const SetTrace& trace) {
    if (last_only && trace.position + 1 != static_cast<std::int64_t>(kFirst + kDecoded + kSecond)) return;
    methods::Scores& sum = sums[static_cast<std::size_t>(trace.layer * shape.kv_heads + trace.kv_head)];
    const methods::Set live(trace.tokens.begin(), trace.tokens.end());
    methods::Rows keys(static_cast<std::size_t>(trace.position) + 1);
    for (const std::int32_t i : live) {
      const std::vector<float> key = dense.key(trace.layer, trace.kv_head, i);
      keys[static_cast<std::size_t>(i)] = {key.begin(), key.end()};
    }
    if (last_only) std::fill(sum.begin(), sum.end(), 0.0);
    for (int j = 0; j < shape.group(); ++j) {
      const auto from = trace.query.begin() + static_cast<std::ptrdiff_t>(j) * shape.head_dim;
      const methods::Scores row = methods::read_probabilities(methods::Row(from, from + shape.head_dim), keys, live);
      for (std::size_t n = 0; n < live.size(); ++n) {
        sum[static_cast<std::size_t>(live[n])] += row[n] / (last_only ? shape.group() : 1);
      }
    }
  });
  for (const Token token : second) dense.decode(token);

  sequence.prefill(second);
  const StateCopy after = state_of(sequence, plan);
  for (std::size_t head = 0; head < sums.size(); ++head) {
    SCOPED_TRACE(head);
    ASSERT_EQ(after.live[head].size(), before.live[head].size() + kSecond);
    double apart = 0, sum = 0;
    for (const std::int32_t i : after.live[head]) {
      apart +=
          std::abs(after.statistic[head].at(static_cast<std::size_t>(i)) - sums[head][static_cast<std::size_t>(i)]);
      sum += sums[head][static_cast<std::size_t>(i)];
    }
    EXPECT_LT(apart, 1e-3 * sum);
  }
  std::vector<methods::Set> read(sums.size());
  sequence.on_sets([&](const SetTrace& trace) {
    read[static_cast<std::size_t>(trace.layer * shape.kv_heads + trace.kv_head)] = {trace.tokens.begin(),
                                                                                    trace.tokens.end()};
  });
  sequence.decode(tokens[kFirst + kDecoded + kSecond]);
  for (int layer = 0; layer < shape.layers; ++layer) {
    // The engine's own statistic: the order of two near the cut hangs on it.
    std::vector<methods::Scores> decisions = by_decision(plan, after.statistic, layer);
    for (int head = 0; head < shape.kv_heads; ++head) {
      SCOPED_TRACE(layer * shape.kv_heads + head);
      const auto at = static_cast<std::size_t>(layer * shape.kv_heads + head);
      methods::Scores& decides = decisions[std::min(static_cast<std::size_t>(head), decisions.size() - 1)];
      methods::Set live = after.live[at];
      live.push_back(static_cast<std::int32_t>(kFirst + kDecoded + kSecond));
      decides.resize(kFirst + kDecoded + kSecond + 1, 0.0);
      if (last_only) {
        EXPECT_EQ(read[at], methods::keep_probable(live, decides, kBudget, read[at]));
      } else {
        EXPECT_EQ(read[at], methods::keep_accumulated(live, decides, {kBudget, kBudget / 2}, read[at]));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, ForgettingLater, testing::Values("h2o", "tova"),
                         [](const auto& row) { return row.param; });

TEST(LaterPrompts, StayUnderRaas) {
  constexpr std::size_t kBudget = 8, kFirst = 100, kSecond = 40;
  Engine& engine = engine_of_chunk(128);
  const plan::Plan plan = make(engine, "raas", budget("8"));
  const std::vector<Token> tokens = tokens_for(engine, 300);
  Sequence sequence = engine.open(plan);
  sequence.prefill(std::span(tokens).first(60));  // the first prompt in two pieces
  sequence.prefill(std::span(tokens).subspan(60, kFirst - 60));
  std::size_t at = kFirst;
  while (at < kFirst + 20) sequence.decode(tokens[at++]);
  const std::size_t second = at;
  sequence.prefill(std::span(tokens).subspan(second, kSecond));
  at += kSecond;
  while (at < second + kSecond + 20) sequence.decode(tokens[at++]);
  for (int layer = 0; layer < plan.shape.layers; ++layer) {
    for (int head = 0; head < plan.shape.kv_heads; ++head) {
      const std::vector<std::int32_t> live = sequence.live(layer, head);
      std::size_t prompt = 0;
      for (const std::int32_t i : live) {
        const auto token = static_cast<std::size_t>(i);
        prompt += token < kFirst || (token >= second && token < second + kSecond);
      }
      EXPECT_EQ(prompt, kFirst + kSecond);
      EXPECT_EQ(live.size(), prompt + kBudget);
    }
  }
}

TEST(CorrectionOfIndices, ReachesTheLastLayer) {
  Engine& engine = engine_of_chunk(128);
  const std::vector<Token> tokens = tokens_for(engine, 500);
  const plan::Plan quest = make(engine, "quest", budget("64"));
  Sequence sequence = engine.open(quest);
  sequence.prefill(std::span(tokens).first(200));
  for (std::size_t i = 200; i < 360; ++i) sequence.decode(tokens[i]);
  sequence.correct(160);
  // An index made anew from the corrected cache.
  Sequence anew = sequence.fork(make(engine, "full")).fork(quest);
  EXPECT_EQ(sets_of(sequence, std::span(tokens).subspan(360, 24)), sets_of(anew, std::span(tokens).subspan(360, 24)));
}

}  // namespace
}  // namespace glimpse::engine
