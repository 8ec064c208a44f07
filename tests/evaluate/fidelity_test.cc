// Fidelity of a forced text: against plain loops over the logits of both plans, and the masses that sets capture as
// run_sets works them out from the cached keys.
#include "glimpse/evaluate/fidelity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "glimpse/base/error.h"
#include "glimpse/evaluate/logits.h"
#include "glimpse/evaluate/sets.h"
#include "tests/evaluate/forced_text.h"

namespace glimpse::evaluate {
namespace {

constexpr std::int64_t kPrompt = 120, kSteps = 14;

constexpr int kBudget = 48;

bool always(std::int64_t) {
  return true;
}

std::vector<std::vector<float>> logits_of(engine::Engine& engine, const plan::Plan& plan,
                                          const std::vector<Token>& tokens) {
  std::vector<std::vector<float>> rows;
  forced_logits(engine, plan, {tokens, kPrompt, kPrompt}, [&](std::int64_t, std::span<const float> logits) {
    rows.emplace_back(logits.begin(), logits.end());
    return true;
  });
  return rows;
}

std::vector<double> log_probabilities(const std::vector<float>& logits) {
  long double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<long double>(logit));
  std::vector<double> made;
  for (const float logit : logits) made.push_back(static_cast<double>(logit - std::log(sum)));
  return made;
}

TEST(Fidelity, OfDenseAttentionIsExact) {
  engine::Engine engine = small_engine(2);
  const FidelityResult result = fidelity(engine, policies::make_plan("full", engine.shape(), {}),
                                         {some_tokens(kPrompt + kSteps), kPrompt, 3}, always);
  EXPECT_EQ(result.all.divergence, 0);
  EXPECT_EQ(result.all.same_choice, 1);
  EXPECT_EQ(result.all.nll, result.all.dense_nll);
  EXPECT_EQ(result.all.tokens, kSteps);
  ASSERT_EQ(result.layers.size(), static_cast<std::size_t>(engine.shape().layers));
  for (const auto& layer : result.layers) EXPECT_EQ(layer.value().least, 1);
}

class FidelityOf : public testing::TestWithParam<const char*> {};

TEST_P(FidelityOf, EqualsPlainLoops) {
  engine::Engine engine = small_engine(2);
  const std::vector<Token> tokens = some_tokens(kPrompt + kSteps);
  const plan::Plan plan = plan_of(engine, GetParam(), kBudget);
  const FidelityResult result = fidelity(engine, plan, {tokens, kPrompt, 4}, always);
  const auto dense = logits_of(engine, plan::dense_plan(engine.shape()), tokens),
             sparse = logits_of(engine, plan, tokens);
  ASSERT_EQ(dense.size(), static_cast<std::size_t>(kSteps));
  const auto expected = [&](std::int64_t first, std::int64_t end) {
    Fidelity made{.first = kPrompt + first, .tokens = end - first};
    for (std::int64_t i = first; i < end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const std::vector<double> p = log_probabilities(dense[at]), q = log_probabilities(sparse[at]);
      for (std::size_t j = 0; j < p.size(); ++j) made.divergence += std::exp(p[j]) * (p[j] - q[j]);
      made.same_choice +=
          std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(q.begin(), q.end()) - q.begin();
      if (i + 1 == kSteps) continue;
      const auto next = static_cast<std::size_t>(tokens[static_cast<std::size_t>(kPrompt + i + 1)]);
      made.dense_nll -= p[next];
      made.nll -= q[next];
      ++made.scored;
    }
    made.divergence /= static_cast<double>(made.tokens);
    made.same_choice /= static_cast<double>(made.tokens);
    made.dense_nll /= static_cast<double>(made.scored);
    made.nll /= static_cast<double>(made.scored);
    return made;
  };
  const auto expect_equal = [](const Fidelity& got, const Fidelity& want) {
    EXPECT_EQ(got.first, want.first);
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.scored, want.scored);
    EXPECT_NEAR(got.divergence, want.divergence, 1e-9);
    EXPECT_EQ(got.same_choice, want.same_choice);
    EXPECT_NEAR(got.dense_nll, want.dense_nll, 1e-9);
    EXPECT_NEAR(got.nll, want.nll, 1e-9);
  };
  EXPECT_GT(result.all.divergence, 1e-6) << "a small budget changes something";
  expect_equal(result.all, expected(0, kSteps));
  ASSERT_EQ(result.ranges.size(), 4u);
  const std::int64_t ends[] = {0, 4, 7, 11, 14};  // 14 tokens in four ranges
  for (std::size_t i = 0; i < 4; ++i) expect_equal(result.ranges[i], expected(ends[i], ends[i + 1]));
}

TEST_P(FidelityOf, LayersCaptureWhatTheirSetsDo) {
  engine::Engine engine = small_engine(2);
  const std::vector<Token> tokens = some_tokens(kPrompt + kSteps);
  const plan::Plan plan = plan_of(engine, GetParam(), kBudget);
  const FidelityResult result = fidelity(engine, plan, {tokens, kPrompt, 1}, always);
  if (plan::forgets(plan)) {  // nobody knows the mass of what was forgotten
    for (const auto& layer : result.layers) EXPECT_FALSE(layer.has_value());
    return;
  }
  std::map<int, std::vector<double>> masses;
  SetsCallbacks callbacks;
  callbacks.on_token = [](Token) {};
  callbacks.on_head = [&](const engine::SetTrace& sets, double coverage) { masses[sets.layer].push_back(coverage); };
  callbacks.on_step = [](const engine::AttentionStats&) { return true; };
  run_sets(engine, plan, {tokens, kPrompt}, callbacks);
  ASSERT_EQ(result.layers.size(), masses.size());
  for (const auto& [layer, all] : masses) {
    double sum = 0;
    for (const double mass : all) sum += mass;
    const LayerCoverage got = result.layers[static_cast<std::size_t>(layer)].value();
    EXPECT_NEAR(got.mean, sum / static_cast<double>(all.size()), 1e-4) << "layer " << layer;
    EXPECT_NEAR(got.least, *std::min_element(all.begin(), all.end()), 1e-4) << "layer " << layer;
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, FidelityOf, testing::Values("tidal", "quest", "kascade", "streaming", "h2o"),
                         [](const auto& one) { return std::string(one.param); });

TEST(Fidelity, EndsWhereItIsTold) {
  engine::Engine engine = small_engine(2);
  const FidelityResult result =
      fidelity(engine, plan_of(engine, "tidal", kBudget), {some_tokens(kPrompt + kSteps), kPrompt, 7},
               [](std::int64_t done) { return done < 5; });
  EXPECT_EQ(result.all.tokens, 5);
  EXPECT_EQ(result.ranges.size(), 3u);
  const FidelityResult nothing = fidelity(engine, plan_of(engine, "tidal", kBudget),
                                          {some_tokens(kPrompt + kSteps), kPrompt, 7}, always, [] { return false; });
  EXPECT_EQ(nothing.all.tokens, 0);
}

TEST(Fidelity, RefusesWhatIsNoText) {
  engine::Engine engine = small_engine(2);
  const plan::Plan plan = plan::dense_plan(engine.shape());
  const std::vector<Token> tokens = some_tokens(kPrompt + kSteps);
  EXPECT_THROW(fidelity(engine, plan, {tokens, 0, 1}, always), UserError);
  EXPECT_THROW(fidelity(engine, plan, {tokens, kPrompt + kSteps, 1}, always), UserError);
  EXPECT_THROW(fidelity(engine, plan, {tokens, kPrompt, 0}, always), UserError);
  EXPECT_THROW(fidelity(engine, plan, {tokens, kPrompt, kSteps + 1}, always), UserError);
}

}  // namespace
}  // namespace glimpse::evaluate
