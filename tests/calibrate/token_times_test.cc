// Times of tokens: the line through two of them, and what a measurement of a small model holds. No time is judged.
#include "glimpse/calibrate/token_times.h"

#include <gtest/gtest.h>

#include <random>

#include "glimpse/base/error.h"
#include "tests/engine/support.h"

namespace glimpse::calibrate {
namespace {

TEST(LineThrough, GoesThroughBothPoints) {
  const plan::TokenTime line = line_through(2000, 9, 4000, 12);
  EXPECT_DOUBLE_EQ(line.fixed_ms, 6);
  EXPECT_DOUBLE_EQ(line.ms_per_1000, 1.5);
  EXPECT_DOUBLE_EQ(line.at(2000), 9);
  EXPECT_DOUBLE_EQ(line.at(4000), 12);
}

TEST(LineThrough, IsLevelWhereItWouldFallAndNeverBelowNothing) {
  EXPECT_EQ(line_through(2000, 10, 4000, 9), (plan::TokenTime{9.5, 0}));
  const plan::TokenTime steep = line_through(2000, 1, 4000, 4);
  EXPECT_EQ(steep.fixed_ms, 0);
  EXPECT_DOUBLE_EQ(steep.ms_per_1000, 1.5);
  EXPECT_THROW(line_through(10, 1, 10, 2), InternalError);
}

TEST(FitMethod, FindsWhatTheTimesWereMadeOf) {
  std::vector<MethodPoint> points;
  for (const double tokens : {2000.0, 4000.0}) {
    for (const double budget : {512.0, 1024.0, tokens / 10}) {
      points.push_back({budget, tokens, 6 + 0.0005 * tokens + 0.002 * budget});
    }
  }
  std::optional<MethodFit> fit = fit_method(points);
  ASSERT_TRUE(fit);
  EXPECT_NEAR(fit->fixed_ms, 6, 1e-9);
  EXPECT_NEAR(fit->ms_per_token, 0.0005, 1e-12);
  EXPECT_NEAR(fit->ms_per_kept, 0.002, 1e-12);
  // An error of one point is shared, and the sum of what is left over is nothing.
  points[0].ms += 0.3;
  fit = fit_method(points);
  ASSERT_TRUE(fit);
  double left = 0;
  for (const MethodPoint& p : points) {
    left += p.ms - fit->fixed_ms - fit->ms_per_token * p.tokens - fit->ms_per_kept * p.budget;
  }
  EXPECT_NEAR(left, 0, 1e-9);
  EXPECT_FALSE(fit_method({{512, 2000, 6}, {512, 4000, 7}})) << "one budget tells nothing of it";
  EXPECT_FALSE(fit_method({}));
  for (MethodPoint& p : points) p.ms = 10 - 0.001 * p.tokens;
  fit = fit_method(points);
  ASSERT_TRUE(fit);
  EXPECT_EQ(fit->ms_per_token, 0) << "time that falls with the context";
}

// The conditions that only the best fit without a negative part meets: the error grows along a part that is 0, and
// neither way along one that is not.
TEST(FitMethod, IsTheBestWithoutANegativePart) {
  std::mt19937 random(5);
  std::normal_distribution<double> noise(0, 1);
  int bounded = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<MethodPoint> points;
    for (const double tokens : {2000.0, 4000.0}) {
      for (const double budget : {512.0, 1024.0, tokens / 10}) {
        points.push_back({budget, tokens, 6 + 0.0003 * tokens + 0.0005 * budget + noise(random)});
      }
    }
    const std::optional<MethodFit> fit = fit_method(points);
    ASSERT_TRUE(fit);
    const double parts[] = {fit->fixed_ms, fit->ms_per_token, fit->ms_per_kept};
    for (int part = 0; part < 3; ++part) {
      double slope = 0;
      for (const MethodPoint& p : points) {
        const double of[] = {1, p.tokens, p.budget};
        slope -= 2 * of[part] * (p.ms - parts[0] - parts[1] * p.tokens - parts[2] * p.budget);
      }
      const double told = 1e-6 * (part == 0 ? 1 : 4000);
      EXPECT_GE(parts[part], 0);
      EXPECT_GT(slope, -told);
      if (parts[part] == 0) {
        ++bounded;
      } else {
        EXPECT_LT(slope, told);
      }
    }
  }
  EXPECT_GT(bounded, 20) << "the noise is enough for parts that would be negative";
}

// What was measured at 2,000 and 4,000 tokens says what a token takes at 30,000, with sets of a number and of a share.
TEST(FitMethod, ReachesBeyondTheMeasuredLengths) {
  const auto truth = [](double tokens, double kept) { return 5.5 + 0.00009 * tokens + 0.0011 * kept; };
  std::vector<MethodPoint> points;
  for (const double tokens : {2000.0, 4000.0}) {
    for (const double kept : {512.0, 1024.0, tokens / 10}) points.push_back({kept, tokens, truth(tokens, kept)});
  }
  const std::optional<MethodFit> fit = fit_method(points);
  ASSERT_TRUE(fit);
  EXPECT_NEAR(line_of(*fit, plan::parse_budget("1024")).at(30000), truth(30000, 1024), 1e-9);
  EXPECT_NEAR(line_of(*fit, plan::parse_budget("10%")).at(30000), truth(30000, 3000), 1e-9);
}

TEST(TokenTimes, HaveALineForEachPlanInTheirOrder) {
  engine::EngineOptions options = engine::options_for(reference::test_model("llama"));
  options.sequences = study_sequences(options.context);
  engine::Engine engine(options);
  Study study{300, 37, {}, {}, {engine.shape(), 8}, {engine.shape(), 8}, {}};
  engine::Sequence dense = engine.open(plan::dense_plan(engine.shape()));
  dense.prefill(engine::random_tokens(300, engine.tokenizer().size()));
  study.trials.push_back({"prose", {}, {}, std::move(dense)});
  const std::vector<TimedPlan> plans{
      {{"tidal", "64", "", {}}, engine::make(engine, "tidal", engine::budget("64"))},
      {{"quest", "80", "sink=1", {}}, engine::make(engine, "quest", engine::budget("80"))},
      {{"evosparse", "128", "", {}}, engine::make(engine, "evosparse", engine::budget("128"))}};
  int calls = 0;
  const Progress::Callback count = [&](std::int64_t, std::int64_t) { return ++calls > 0; };
  Progress progress(count, 1000);
  TokenTimes times(engine, study, plans);
  times.take_turn({1, 1, 1}, progress);
  times.verify();
  // What was taken is the same in another's place.
  TokenTimes others(engine, study, plans);
  EXPECT_FALSE(others.take_over({}));
  EXPECT_FALSE(others.take_over({1, 2, 3}));
  ASSERT_TRUE(others.take_over(times.taken()));
  EXPECT_EQ(others.taken(), times.taken());
  EXPECT_EQ(others.speed().methods, times.speed().methods);
  EXPECT_EQ(others.speed().dense, times.speed().dense);
  // A turn of some is theirs and dense attention's alone.
  const std::vector<double> before = times.taken();
  times.take_turn({0, 0, 1}, progress);
  EXPECT_EQ(times.taken().size(), before.size() * 6 / 4);
  const plan::SpeedProfile speed = times.speed();
  EXPECT_GT(calls, 0);
  EXPECT_EQ(speed.tokens, 300 + kAnswerRoom);
  EXPECT_EQ(speed.threads, engine.threads());
  EXPECT_EQ(speed.kv_type, name(engine.kv_type()));
  EXPECT_GT(speed.dense.at(300), 0);
  EXPECT_GT(speed.verify.at(300), 0);
  ASSERT_EQ(speed.methods.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(speed.methods[i].method, plans[i].row.method);
    EXPECT_EQ(speed.methods[i].budget, plans[i].row.budget);
    EXPECT_EQ(speed.methods[i].options, plans[i].row.options);
    EXPECT_GT(speed.methods[i].time.at(300), 0);
  }
  EXPECT_EQ(study.trials.front().dense.length(), 300) << "the study's sequence is as it was";
}

}  // namespace
}  // namespace glimpse::calibrate
