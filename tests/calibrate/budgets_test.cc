// Calibration of budgets from end to end on a small random model.
#include "glimpse/calibrate/budgets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/calibrate/least_tokens.h"
#include "glimpse/policies/policy.h"
#include "tests/engine/support.h"

namespace glimpse::calibrate {
namespace {

using testing::HasSubstr;

engine::EngineOptions with_room() {
  engine::EngineOptions options = engine::options_for(reference::test_model("llama"));
  options.sequences = study_sequences(options.context);
  return options;
}

BudgetOptions short_prompts() {
  BudgetOptions options;
  options.study.length = 700;
  options.coverage = 0.8;
  return options;
}

TEST(CalibrateBudgets, MakesAProfileThatMethodsTake) {
  engine::Engine engine(with_room());
  BudgetOptions options = short_prompts();
  std::int64_t last = 0;
  options.on_progress = [&](std::int64_t done, std::int64_t total) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, total);
    last = done;
    return true;
  };
  const std::optional<BudgetCalibration> found = calibrate_budgets(engine, options);
  ASSERT_TRUE(found);
  const plan::ModelShape shape = engine.shape();
  plan::validate_for(found->profile, shape);
  EXPECT_EQ(plan::parse_profile(plan::to_json(found->profile)), found->profile);
  const plan::BudgetProfile& budgets = *found->profile.budget;
  EXPECT_EQ(budgets.context, 700);
  EXPECT_EQ(budgets.coverage, 0.8);
  EXPECT_FALSE(budgets.steps);
  EXPECT_FALSE(budgets.divergence);
  for (const int tokens : budgets.tokens) EXPECT_EQ(tokens % LeastTokens::kGrain, 0);
  policies::PolicyOptions how;
  how.profile_budget = true;
  how.profile = &found->profile;
  for (const char* method : {"tidal", "kascade", "lychee-decode", "quest", "oracle"}) {
    policies::make_plan(method, shape, how);
  }
  // Other prompts are like those that the budgets come from.
  EXPECT_NEAR(found->kept.coverage, 0.8, 0.15);
  EXPECT_EQ(found->same.asked, 0);
  EXPECT_TRUE(found->tried.empty());
  EXPECT_EQ(calibrate_budgets(engine, short_prompts())->profile, found->profile);
}

TEST(CalibrateBudgets, MoreStepsAndMoreMassNeedMoreTokens) {
  engine::Engine engine(with_room());
  BudgetOptions options = short_prompts();
  const auto sum = [&] {
    const std::vector<int> tokens = calibrate_budgets(engine, options)->profile.budget->tokens;
    int all = 0;
    for (const int each : tokens) all += each;
    return all;
  };
  options.steps = 0.5;
  const int half = sum();
  options.steps = 1;
  const int always = sum();
  EXPECT_LT(half, always);
  options.coverage = 0.9;
  EXPECT_LT(always, sum());
}

TEST(CalibrateBudgets, AKlTakesTheLeastCoverageThatKeepsIt) {
  engine::Engine engine(with_room());
  BudgetOptions options = short_prompts();
  options.coverage = 0.9375;  // one of those that are searched
  const double target = calibrate_budgets(engine, options)->kept.divergence;
  ASSERT_GT(target, 0);
  Measured measured(7);
  options.measured = &measured;
  options.divergence = target;
  const std::optional<BudgetCalibration> found = calibrate_budgets(engine, options);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kept.asked, 0.9375);
  EXPECT_EQ(found->kept.divergence, target);
  EXPECT_EQ(found->profile.budget->divergence, target);
  EXPECT_EQ(found->profile.budget->coverage, 0.9375);
  int failed = 0;
  for (const BudgetKept& tried : found->tried) {
    EXPECT_EQ(tried.divergence <= target, tried.asked >= found->kept.asked) << tried.asked;
    failed += tried.divergence > target ? 1 : 0;
  }
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, std::ssize(found->tried));
  // What was measured is not measured again.
  const std::size_t known = measured.size();
  EXPECT_GE(known, found->tried.size());
  Measured second = *Measured::parse(measured.text(), 7);
  options.measured = &second;
  const std::optional<BudgetCalibration> again = calibrate_budgets(engine, options);
  EXPECT_EQ(again->profile, found->profile);
  EXPECT_EQ(second.size(), known);
  EXPECT_EQ(again->kept.divergence, found->kept.divergence);
}

TEST(CalibrateBudgets, RefusesAKlThatNothingKeeps) {
  engine::Engine engine(with_room());
  BudgetOptions options = short_prompts();
  options.divergence = 1e-15;
  try {
    calibrate_budgets(engine, options);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("give more nats with --kl"));
  }
}

TEST(CalibrateBudgets, EndsWhereItIsToldTo) {
  engine::Engine engine(with_room());
  BudgetOptions options = short_prompts();
  int calls = 0;
  options.on_progress = [&](std::int64_t, std::int64_t) { return ++calls < 4; };
  EXPECT_FALSE(calibrate_budgets(engine, options));
  EXPECT_EQ(calls, 4);
}

TEST(CalibrateBudgets, RefusesWhatHoldsNoTask) {
  engine::Engine engine(with_room());
  BudgetOptions options;
  options.study.length = 100;
  try {
    calibrate_budgets(engine, options);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("too small"));
  }
}

}  // namespace
}  // namespace glimpse::calibrate
