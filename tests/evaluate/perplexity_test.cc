// Perplexity against libllama's own logits, scored here in plain loops the way llama.cpp's tool does.
#include "glimpse/evaluate/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "glimpse/base/error.h"
#include "glimpse/evaluate/logits.h"
#include "glimpse/policies/policy.h"
#include "tests/support/llama_reference.h"
#include "tests/support/models.h"

namespace glimpse::evaluate {
namespace {

std::vector<Token> random_tokens(std::size_t count) {
  std::mt19937 random(11);
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = static_cast<Token>(260 + random() % 250);
  return tokens;
}

engine::EngineOptions options_for(const std::string& model, std::int64_t context) {
  engine::EngineOptions options;
  options.model = reference::test_model(model);
  options.context = context;
  options.threads = 2;
  options.kv_type = KvType::f32;
  options.prefill_chunk = 48;
  return options;
}

TEST(Nll, IsThatOfAPlainSoftmax) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> logits(1000);
  for (float& value : logits) value = normal(random);
  long double sum = 0;
  for (const float value : logits) sum += std::exp(static_cast<long double>(value));
  for (const Token target : {0, 17, 999}) {
    const auto expected = -std::log(std::exp(static_cast<long double>(logits[static_cast<std::size_t>(target)])) / sum);
    EXPECT_NEAR(token_nll(logits, target), static_cast<double>(expected), 1e-12);
  }
  for (float& value : logits) value += 1000;
  EXPECT_TRUE(std::isfinite(token_nll(logits, 3)));
  EXPECT_THROW(token_nll(logits, 1000), InternalError);
}

TEST(Nll, MeanAndStandardErrorAreLlamaCpps) {
  const std::vector<double> values{1.5, 2.25, 0.5, 4.0, 3.125, 2.0};
  NllMean mean;
  double sum = 0, squares = 0;
  for (const double value : values) {
    mean.add(value);
    sum += value;
    squares += value * value;
  }
  const double count = static_cast<double>(values.size());
  EXPECT_NEAR(mean.mean(), sum / count, 1e-14);
  EXPECT_NEAR(mean.standard_error(), std::sqrt((squares / count - sum * sum / count / count) / (count - 1)), 1e-14);
  NllMean one;
  one.add(3);
  EXPECT_EQ(one.standard_error(), 0);
}

class Perplexity : public ::testing::TestWithParam<const char*> {};

TEST_P(Perplexity, IsThatOfLibllamasLogits) {
  constexpr int kWindow = 96;
  const std::vector<Token> tokens = random_tokens(3 * kWindow + 20);
  engine::Engine engine(options_for(GetParam(), kWindow));
  PerplexityOptions options;
  options.window = kWindow;
  const PerplexityResult result = perplexity(engine, plan::dense_plan(engine.shape()), tokens, options);

  reference::LlamaReference llama(reference::test_model(GetParam()), {.context = kWindow, .exact = true});
  NllMean nll;
  for (int window = 0; window < 3; ++window) {
    std::vector<Token> text(tokens.begin() + window * kWindow, tokens.begin() + (window + 1) * kWindow);
    if (engine.tokenizer().adds_bos()) text[0] = engine.tokenizer().bos();
    const auto vocabulary = static_cast<std::size_t>(llama.vocabulary());
    std::vector<float> logits(static_cast<std::size_t>(kWindow) * vocabulary);
    llama.truncate(0);
    llama.append(text, &logits);
    for (std::size_t i = kWindow / 2; i + 1 < kWindow; ++i) {
      long double sum = 0;
      for (std::size_t j = 0; j < vocabulary; ++j)
        sum += std::exp(static_cast<long double>(logits[i * vocabulary + j]));
      const float target = logits[i * vocabulary + static_cast<std::size_t>(text[i + 1])];
      nll.add(static_cast<double>(std::log(sum) - static_cast<long double>(target)));
    }
  }
  EXPECT_EQ(result.windows, 3);
  EXPECT_EQ(result.tokens_scored, nll.count());
  EXPECT_NEAR(result.perplexity, std::exp(nll.mean()), 5e-3 * std::exp(nll.mean()));
  EXPECT_NEAR(result.standard_error, std::exp(nll.mean()) * nll.standard_error(), 0.02 * result.standard_error);
}

// llama2 and llama3 begin every window with their BOS token.
INSTANTIATE_TEST_SUITE_P(Models, Perplexity, ::testing::Values("llama", "llama2", "llama3", "qwen3"),
                         [](const auto& row) { return std::string(row.param); });

TEST(PerplexityRun, PrefillPartWindowsAndStop) {
  engine::Engine engine(options_for("llama", 64));
  const plan::Plan dense = plan::dense_plan(engine.shape());
  const std::vector<Token> tokens = random_tokens(200);
  PerplexityOptions options;
  options.window = 64;
  const double all = perplexity(engine, dense, tokens, options).perplexity;
  for (const std::int64_t prefill : {0, 10, 32, 33, 63, 64}) {
    options.prefill = prefill;
    const PerplexityResult result = perplexity(engine, dense, tokens, options);
    EXPECT_NEAR(result.perplexity, all, 1e-3 * all) << prefill;
    EXPECT_EQ(result.tokens_scored, 3 * 31) << prefill;
    EXPECT_EQ(result.attention.dense_steps, 3 * std::max<std::int64_t>(0, 63 - prefill)) << prefill;
  }
  options.windows = 2;
  EXPECT_EQ(perplexity(engine, dense, tokens, options).tokens_scored, 2 * 31);
  options.on_progress = [](std::int64_t done, std::int64_t total) {
    EXPECT_EQ(total, 2 * 31);
    return done < 5;
  };
  options.prefill = 16;
  EXPECT_EQ(perplexity(engine, dense, tokens, options).tokens_scored, 5);
}

TEST(PerplexityRun, Refusals) {
  engine::Engine engine(options_for("llama", 64));
  const plan::Plan dense = plan::dense_plan(engine.shape());
  const std::vector<Token> tokens = random_tokens(100);
  const auto run = [&](PerplexityOptions options) { perplexity(engine, dense, tokens, options); };
  EXPECT_THROW(run({.window = 3}), UserError);
  EXPECT_THROW(run({.window = 65}), UserError);
  EXPECT_THROW(run({.window = 64, .prefill = 65}), UserError);
  EXPECT_THROW(run({.window = 64, .windows = 2}), UserError);
  const std::vector<Token> few = random_tokens(20);
  EXPECT_THROW(perplexity(engine, dense, few, {.window = 64}), UserError);
}

TEST(ForcedLogits, GiveWantedPositionsInOrder) {
  engine::Engine engine(options_for("llama", 64));
  const std::vector<Token> tokens = random_tokens(50);
  policies::PolicyOptions sparse;
  sparse.budget = plan::parse_budget("8");
  const plan::Plan plan = policies::make_plan("tidal", engine.shape(), sparse);
  for (const std::int64_t first : {0, 5, 20, 30}) {
    std::vector<std::int64_t> positions;
    const auto stats = forced_logits(engine, plan, {tokens, 20, first}, [&](std::int64_t position, auto logits) {
      EXPECT_EQ(logits.size(), 512u);
      positions.push_back(position);
      return true;
    });
    ASSERT_EQ(positions.size(), static_cast<std::size_t>(50 - first));
    EXPECT_EQ(positions.front(), first);
    EXPECT_EQ(positions.back(), 49);
    EXPECT_EQ(stats.sparse_steps, 30);
  }
}

TEST(ForcedLogits, EndsBetweenChunksOfThePrefill) {
  engine::Engine engine(options_for("llama", 256));
  const plan::Plan dense = plan::dense_plan(engine.shape());
  const std::vector<Token> tokens = random_tokens(200);  // 5 chunks of 48
  for (const std::int64_t first : {0, 200}) {
    int asked = 0, given = 0;
    const auto go_on = [&] { return ++asked < 3; };
    forced_logits(engine, dense, {tokens, 200, first, go_on}, [&](std::int64_t, auto) {
      ++given;
      return true;
    });
    EXPECT_EQ(asked, 3);
    EXPECT_EQ(given, first == 0 ? 2 * 48 : 0);
  }
  int asked = 0;
  PerplexityOptions options;
  options.window = 100;
  options.go_on = [&] { return ++asked < 2; };
  EXPECT_EQ(perplexity(engine, dense, tokens, options).tokens_scored, 0) << "the first chunk is not scored";
}

}  // namespace
}  // namespace glimpse::evaluate
