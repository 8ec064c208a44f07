// Lossless decoding: the rejection rule against the distribution it must give, the answer against dense decoding, the
// state against one that never drafted.
#include "glimpse/engine/lossless.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "glimpse/base/error.h"
#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

using text::TokenProbability;

std::vector<TokenProbability> distribution(std::initializer_list<double> weights) {
  std::vector<TokenProbability> made;
  double sum = 0;
  for (const double w : weights) sum += w;
  Token token = 0;
  for (const double w : weights) {
    if (w > 0) made.push_back({token, static_cast<float>(w / sum)});
    ++token;
  }
  return made;
}

/// Wilson and Hilferty's approximation of the chi-square quantile at 0.999.
double quantile_999(double freedom) {
  const double cube = 1 - 2 / (9 * freedom) + 3.09 * std::sqrt(2 / (9 * freedom));
  return freedom * cube * cube * cube;
}

void expect_distributed(const std::vector<std::int64_t>& seen, const std::vector<TokenProbability>& wanted) {
  std::int64_t draws = 0;
  for (const std::int64_t count : seen) draws += count;
  double statistic = 0;
  std::int64_t expected_draws = 0;
  for (const TokenProbability& entry : wanted) {
    const double expected = static_cast<double>(entry.probability) * static_cast<double>(draws);
    const auto count = seen[static_cast<std::size_t>(entry.token)];
    expected_draws += count;
    statistic += (static_cast<double>(count) - expected) * (static_cast<double>(count) - expected) / expected;
  }
  EXPECT_EQ(expected_draws, draws) << "a token of probability 0 was drawn";
  EXPECT_LT(statistic, quantile_999(static_cast<double>(wanted.size() - 1)));
}

TEST(RejectionRule, GivesTheWantedDistributionWhateverWasProposed) {
  const std::vector<std::vector<TokenProbability>> made{
      distribution({1, 2, 3, 4, 5, 6}), distribution({6, 5, 4, 3, 2, 1}), distribution({1, 1, 1, 1, 1, 1}),
      distribution({0, 0, 1, 1, 0, 0}), distribution({9, 0, 0, 0, 1, 0}), distribution({0, 1, 0, 0, 0, 0})};
  std::mt19937_64 random(3);
  for (const auto& wanted : made) {
    for (const auto& proposed : made) {
      std::vector<std::int64_t> seen(6, 0);
      for (int i = 0; i < 100'000; ++i) {
        const Token draft = draw(proposed, random);
        ++seen[static_cast<std::size_t>(verified(draft, proposed, wanted, random))];
      }
      if (wanted.size() == 1) {
        EXPECT_EQ(seen[1], 100'000);
      } else {
        expect_distributed(seen, wanted);
      }
    }
  }
}

TEST(RejectionRule, GreedyTakesTheDenseTokenAndAcceptsOnlyAgreement) {
  std::mt19937_64 random(1);
  const std::vector<TokenProbability> a{{3, 1.0F}}, b{{5, 1.0F}};
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(verified(3, a, a, random), 3);
    EXPECT_EQ(verified(3, a, b, random), 5);
  }
}

TEST(DraftLength, TokensOfACycleAreTheGeometricSum) {
  EXPECT_DOUBLE_EQ(cycle_tokens(0, 5), 1);
  EXPECT_DOUBLE_EQ(cycle_tokens(1, 5), 6);
  EXPECT_NEAR(cycle_tokens(0.5, 3), 1 + 0.5 + 0.25 + 0.125, 1e-12);
}

TEST(DraftLength, GrowsWithAcceptanceAndRestsWhereItDoesNotPay) {
  const DraftCosts costs{.weights = 100, .dense = 900, .sparse = 60, .rows = {.same_bits = 16}};
  DraftLength good, some, bad;
  int longest = 0;
  for (int i = 0; i < 30; ++i) {
    const int drafts = good.next(costs);
    ASSERT_GT(drafts, 0);
    longest = std::max(longest, drafts);
    good.record(drafts, drafts);
  }
  int shorter = 0;
  for (int i = 0; i < 10; ++i) {
    shorter = some.next(costs);
    ASSERT_GT(shorter, 0);
    some.record(shorter, std::min(shorter, 6));
  }
  EXPECT_LT(shorter, longest);
  for (int i = 0; i < 30; ++i) {
    const int drafts = some.next(costs);
    some.record(drafts, drafts);
  }
  EXPECT_GT(some.next(costs), shorter);
  int rests = 0;
  double spent = 0;
  std::int64_t tokens = 0;
  for (int i = 0; i < 3000; ++i) {
    const int drafts = bad.next(costs);
    rests += drafts == 0;
    spent += drafts == 0 ? 1 : cycle_cost(costs, drafts);
    ++tokens;  // nothing is ever accepted
    if (drafts > 0) bad.record(drafts, 0);
  }
  EXPECT_GT(rests, 2900);
  EXPECT_LT(spent / static_cast<double>(tokens), 1.03);
}

/// Dense steps that a text of so many tokens would have taken, over what it took with drafts of this chance.
double gain_of(double chance, const DraftCosts& costs, int tokens, std::uint32_t seed) {
  DraftLength length;
  std::mt19937_64 random(seed);
  double spent = 0;
  int made = 0;
  while (made < tokens) {
    const int drafts = length.next(costs);
    if (drafts == 0) {
      ++made;
      spent += 1;
      continue;
    }
    int accepted = 0;
    while (accepted < drafts && uniform(random) < chance) ++accepted;
    length.record(drafts, accepted);
    made += accepted + 1;
    spent += cycle_cost(costs, drafts);
  }
  return made / spent;
}

// A 135M model at 30,000 tokens and a tenth of them, in MB; and a rejection at the start is no verdict on the text.
TEST(DraftLength, PaysWhereDraftsAreMostlyAcceptedAndCostsLittleWhereTheyAreNot) {
  const DraftCosts costs{.weights = 145, .dense = 684, .sparse = 135, .group = 3, .rows = {.same_bits = 5}};
  double likely = 0, unlikely = 0, never = 0;
  constexpr int kTexts = 200;
  for (std::uint32_t seed = 0; seed < kTexts; ++seed) {
    likely += gain_of(0.96, costs, 400, seed) / kTexts;
    unlikely += gain_of(0.6, costs, 400, seed) / kTexts;
    never += gain_of(0, costs, 400, seed) / kTexts;
  }
  EXPECT_GT(likely, 1.2);
  EXPECT_GT(unlikely, 0.97);
  EXPECT_GT(never, 0.96);
}

TEST(DraftLength, FixedIsFixed) {
  DraftLength three(3);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(three.next({}), 3);
    three.record(3, 0);
  }
}

TEST(SamplerDistribution, IsWhatSampleDrawsFrom) {
  text::SamplingOptions options;
  options.temperature = 0.8F;
  options.top_k = 5;
  options.repeat_penalty = 1.3F;
  options.seed = 4;
  text::Sampler sampler(options);
  for (const Token token : {1, 2, 2, 7}) sampler.accept(token);
  const std::vector<float> logits{0.1F, 2.0F, 1.5F, -1.0F, 0.7F, 1.9F, 0.3F, 2.2F};
  std::vector<TokenProbability> wanted;
  sampler.distribution(logits, wanted);
  ASSERT_GE(wanted.size(), 2u);
  double sum = 0;
  for (const TokenProbability& entry : wanted) sum += static_cast<double>(entry.probability);
  EXPECT_NEAR(sum, 1, 1e-5);
  std::vector<std::int64_t> seen(logits.size(), 0);
  for (int i = 0; i < 100'000; ++i) ++seen[static_cast<std::size_t>(sampler.sample(logits))];
  expect_distributed(seen, wanted);
}

struct Answer {
  std::vector<Token> tokens;
  RequestStats stats;
};

Answer answer(Engine& engine, Request request) {
  const RequestId id = engine.submit(std::move(request));
  while (!engine.finished(id)) engine.step();
  Answer got{engine.result(id).tokens, engine.result(id).stats};
  engine.release(id);
  return got;
}

Request request_for(const Engine& engine, std::vector<Token> prompt, plan::Plan plan) {
  Request request;
  request.prompt = std::move(prompt);
  request.plan = std::move(plan);
  request.max_tokens = 40;
  request.ignore_end = true;
  (void)engine;
  return request;
}

class Lossless : public testing::TestWithParam<const char*> {
 protected:
  Engine engine_{options_for(reference::test_model("llama"), KvType::bf16)};
  std::vector<Token> prompt_ = random_tokens(500, engine_.tokenizer().size(), 5);
};

/// Where the answers part, dense logits of the two tokens must lie as near as rows of one and of several passes do.
void expect_dense_answer(Engine& engine, const std::vector<Token>& prompt, const std::vector<Token>& got,
                         const std::vector<Token>& want) {
  ASSERT_EQ(got.size(), want.size());
  const auto parted = std::mismatch(got.begin(), got.end(), want.begin());
  if (parted.first == got.end()) return;
  Sequence dense = engine.open(make(engine, "full"));
  std::vector<Token> text = prompt;
  text.insert(text.end(), want.begin(), parted.second);
  const std::span<const float> logits = dense.prefill(text);
  const float gap = logits[static_cast<std::size_t>(*parted.second)] - logits[static_cast<std::size_t>(*parted.first)];
  EXPECT_LT(std::fabs(gap), 2e-2F) << "token " << parted.first - got.begin();
}

TEST_P(Lossless, GreedyIsDenseDecoding) {
  const Answer dense = answer(engine_, request_for(engine_, prompt_, make(engine_, "full")));
  for (const int drafts : {1, 3, 4, 7, 0}) {
    SCOPED_TRACE(drafts);
    Request request = request_for(engine_, prompt_, make(engine_, GetParam(), budget("64")));
    request.lossless = true;
    request.draft_tokens = drafts;
    const Answer got = answer(engine_, request);
    if (drafts <= 4) {  // five rows have the bits of one
      EXPECT_EQ(got.tokens, dense.tokens);
    } else {
      expect_dense_answer(engine_, prompt_, got.tokens, dense.tokens);
    }
    const LosslessStats& stats = got.stats.lossless;
    EXPECT_LE(stats.accepted, stats.drafted);
    if (drafts > 0 && !plan::is_dense_at(request.plan, 500)) {
      EXPECT_GT(stats.verify_passes, 0);
      EXPECT_EQ(static_cast<std::int64_t>(got.tokens.size()),
                1 + stats.accepted + stats.verify_passes + stats.dense_steps);
      const DenseSteps& by = got.stats.attention.dense_by;
      EXPECT_EQ(by[static_cast<std::size_t>(DenseReason::verify)], stats.verify_passes);
      EXPECT_EQ(by[static_cast<std::size_t>(DenseReason::drafts)], stats.dense_steps);
    }
    EXPECT_GT(got.stats.attention.bytes_read, 0);
    // Every verification reads the whole context, whatever the number of its rows.
    const plan::ModelShape shape = engine_.shape();
    EXPECT_GE(got.stats.attention.k_rows, stats.verify_passes * 500 * shape.layers * shape.kv_heads);
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, Lossless,
                         testing::Values("tidal", "kascade", "lychee-decode", "evosparse", "lychee-cluster", "quest",
                                         "omnikv", "lessismore", "clusterkv", "arkvale", "shadowkv", "oracle"),
                         [](const auto& row) {
                           std::string name = row.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(LosslessRequests, ABatchGivesEachItsOwnAnswer) {
  EngineOptions options = options_for(reference::test_model("llama"), KvType::bf16);
  options.sequences = 4;
  Engine engine(options);
  std::vector<RequestId> ids;
  std::vector<std::vector<Token>> prompts, wanted;
  for (int i = 0; i < 4; ++i) {
    prompts.push_back(random_tokens(300 + 50 * static_cast<std::size_t>(i), engine.tokenizer().size(),
                                    static_cast<std::uint32_t>(i)));
    wanted.push_back(answer(engine, request_for(engine, prompts.back(), make(engine, "full"))).tokens);
  }
  for (int i = 0; i < 4; ++i) {
    const char* policy = i % 2 == 0 ? "tidal" : "quest";
    Request request = request_for(engine, prompts[static_cast<std::size_t>(i)], make(engine, policy, budget("64")));
    request.lossless = i != 3;  // one of them plain
    if (i == 3) request.plan = make(engine, "full");
    request.draft_tokens = request.lossless ? i + 1 : 0;
    ids.push_back(engine.submit(std::move(request)));
  }
  while (engine.step()) {
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    expect_dense_answer(engine, prompts[i], engine.result(ids[i]).tokens, wanted[i]);
  }
}

TEST(LosslessRequests, EndsWhereDenseDecodingEnds) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  const std::vector<Token> prompt = random_tokens(300, engine.tokenizer().size(), 9);
  for (const std::int64_t most : {1, 2, 3, 5, 8}) {
    Request request = request_for(engine, prompt, make(engine, "tidal", budget("64")));
    request.lossless = true;
    request.draft_tokens = 4;
    request.max_tokens = most;
    EXPECT_EQ(static_cast<std::int64_t>(answer(engine, request).tokens.size()), most);
  }
  EngineOptions small = options_for(reference::test_model("llama"), KvType::bf16);
  small.context = 310;
  Engine full(small);
  Request request = request_for(full, prompt, make(full, "tidal", budget("64")));
  request.max_tokens = -1;
  const std::size_t plain = answer(full, request).tokens.size();
  request.lossless = true;
  request.draft_tokens = 4;
  EXPECT_EQ(answer(full, request).tokens.size(), plain);
}

TEST(LosslessRequests, TheSeedDecidesForAnyThreads) {
  std::vector<std::vector<Token>> answers;
  for (const int threads : {1, 2, 3}) {
    Engine engine(options_for(reference::test_model("llama"), KvType::bf16, threads));
    Request request =
        request_for(engine, random_tokens(300, engine.tokenizer().size(), 2), make(engine, "evosparse", budget("64")));
    request.lossless = true;
    request.sampling.temperature = 1;
    request.sampling.seed = 11;
    answers.push_back(answer(engine, request).tokens);
  }
  EXPECT_EQ(answers[0], answers[1]);
  EXPECT_EQ(answers[0], answers[2]);
}

using Continuations = std::map<std::vector<Token>, double>;

/// With what probability dense decoding says each sequence of `more` tokens; `logits` are those of the last token.
void add_continuations(const Sequence& dense, const plan::Plan& full, const std::vector<float>& logits,
                       const text::SamplingOptions& sampling, int more, double probability, std::vector<Token>& so_far,
                       Continuations& all) {
  std::vector<TokenProbability> next;
  text::Sampler(sampling).distribution(logits, next);
  for (const TokenProbability& entry : next) {
    so_far.push_back(entry.token);
    const double reached = probability * static_cast<double>(entry.probability);
    if (more == 1) {
      all[so_far] = reached;
    } else {
      Sequence fork = dense.fork(full);
      const std::span<const float> after = fork.decode(entry.token);
      add_continuations(fork, full, {after.begin(), after.end()}, sampling, more - 1, reached, so_far, all);
    }
    so_far.pop_back();
  }
}

/// Draws are spread as the rejection rule's theorem says, through drafts, verification and what comes after a
/// rejection: over 100,000 tokens, four at a time, of the three likeliest of a small model. Small budgets make bad
/// drafts.
void expect_dense_distribution(const std::vector<text::TokenBias>& biases, std::int64_t answers) {
  constexpr int kTokens = 4;
  EngineOptions options = options_for(reference::test_model("small"), KvType::f32, 1);
  options.context = 128;
  options.sequences = 24;
  options.prefill_chunk = 95;
  Engine engine(options);
  const std::vector<Token> prompt = random_tokens(96, engine.tokenizer().size(), 40);
  const plan::Plan full = make(engine, "full");
  const plan::Plan plan = make(engine, "tidal", budget("4"));
  text::SamplingOptions sampling;
  sampling.temperature = 1.5F;
  sampling.top_k = 3;
  sampling.top_p = 1;
  sampling.min_p = 0;
  sampling.logit_bias = biases;

  Continuations expected;
  {
    Sequence dense = engine.open(full);
    const std::span<const float> logits = dense.prefill(prompt);
    std::vector<Token> so_far;
    add_continuations(dense, full, {logits.begin(), logits.end()}, sampling, kTokens, 1, so_far, expected);
  }
  ASSERT_EQ(expected.size(), 81u);

  Sequence start = engine.open(plan);
  start.prefill(std::span(prompt).first(95));
  std::map<std::vector<Token>, std::int64_t> seen;
  std::int64_t drafted = 0, accepted = 0, submitted = 0;
  std::vector<RequestId> running;
  while (submitted < answers || !running.empty()) {
    while (submitted < answers && running.size() < 16) {
      Request request = request_for(engine, prompt, plan);
      request.lossless = true;
      request.draft_tokens = 1 + static_cast<int>(submitted % 3);
      request.max_tokens = kTokens + static_cast<int>(submitted % 2);
      request.sampling = sampling;
      request.sampling.seed = static_cast<std::uint32_t>(++submitted);
      running.push_back(engine.submit(std::move(request), start.fork(plan)));
    }
    engine.step();
    for (std::size_t i = 0; i < running.size();) {
      if (!engine.finished(running[i])) {
        ++i;
        continue;
      }
      const Result& result = engine.result(running[i]);
      ASSERT_EQ(result.stats.reused_tokens, 95);
      drafted += result.stats.lossless.drafted;
      accepted += result.stats.lossless.accepted;
      ++seen[{result.tokens.begin(), result.tokens.begin() + kTokens}];
      engine.release(running[i]);
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  EXPECT_GT(10 * (drafted - accepted), drafted) << "drafts that are never wrong show nothing";

  // Cells of few draws count together.
  double statistic = 0, rare = 0, freedom = -1;
  std::int64_t rarely = 0, known = 0;
  const auto add = [&](double wanted, std::int64_t count) {
    statistic += (static_cast<double>(count) - wanted) * (static_cast<double>(count) - wanted) / wanted;
    ++freedom;
  };
  for (const auto& [tokens, probability] : expected) {
    const double wanted = probability * static_cast<double>(answers);
    known += seen[tokens];
    if (wanted >= 10) {
      add(wanted, seen[tokens]);
    } else {
      rare += wanted;
      rarely += seen[tokens];
    }
  }
  EXPECT_EQ(known, answers) << "an answer of probability 0 was given";
  if (rare > 0) add(rare, rarely);
  EXPECT_GT(freedom, 15);
  EXPECT_LT(statistic, quantile_999(freedom))
      << freedom << " degrees of freedom, " << drafted << " drafted, " << accepted << " accepted";
}

TEST(LosslessRequests, SampledAnswersAreDistributedAsDenseOnes) {
  expect_dense_distribution({}, kSanitized ? 2'500 : 26'000);
}

TEST(LosslessRequests, SampledAnswersAreDistributedAsBiasedDenseOnes) {
  std::vector<text::TokenBias> biases{{7, 2}, {9, 3}};
  for (Token token = 20; token < 200; ++token) biases.push_back({token, -std::numeric_limits<float>::infinity()});
  expect_dense_distribution(biases, kSanitized ? 1'000 : 8'000);
}

TEST(LosslessRequests, RefusesWhatCannotBeVerified) {
  Engine engine(options_for(reference::test_model("llama"), KvType::bf16));
  for (const char* policy : {"h2o", "tova", "raas", "streaming", "razor", "duo"}) {
    Request request =
        request_for(engine, random_tokens(20, engine.tokenizer().size()), make(engine, policy, budget("64")));
    request.lossless = true;
    EXPECT_THAT([&] { engine.submit(request); }, testing::ThrowsMessage<UserError>(testing::HasSubstr("forgets")))
        << policy;
  }
  Request request =
      request_for(engine, random_tokens(20, engine.tokenizer().size()), make(engine, "tidal", budget("64")));
  request.lossless = true;
  request.draft_tokens = kMostDrafts + 1;
  EXPECT_THROW(engine.submit(request), UserError);
  request.draft_tokens = 2;
  request.correct_every = 4;
  EXPECT_THROW(engine.submit(request), UserError);
}

}  // namespace
}  // namespace glimpse::engine
