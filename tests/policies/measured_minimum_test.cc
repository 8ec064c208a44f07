// From which context on a method is faster, against the times of both at many lengths.
#include "glimpse/policies/measured_minimum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace glimpse::policies {
namespace {

/// A token takes `fixed`, and so much for each token of context and of the set.
struct Costs {
  double fixed = 0, context = 0, kept = 0;
  double ms(std::int64_t tokens, const plan::Budget& budget) const {
    const double set =
        budget.rule == plan::BudgetRule::ratio ? budget.value * static_cast<double>(tokens) : budget.value;
    return fixed + context * static_cast<double>(tokens) + kept * set;
  }
  plan::TokenTime line(const plan::Budget& budget) const { return {ms(0, budget), ms(1000, budget) - ms(0, budget)}; }
};

TEST(MeasuredMinimum, IsWhereTheLinesCross) {
  std::mt19937 random(3);
  const auto uniform = [&](double most) { return std::uniform_real_distribution<double>(0, most)(random); };
  int crossed = 0;
  for (int turn = 0; turn < 300; ++turn) {
    const Costs dense{uniform(2), uniform(2e-3), 0}, sparse{uniform(4), uniform(1e-3), uniform(1e-3)};
    plan::SpeedProfile speed{"P", 1, "bf16", 4000, {dense.fixed, 1000 * dense.context}, {3, 1}, {}};
    for (const char* text : {"512", "1024", "10%"}) {
      speed.methods.push_back({"tidal", text, "", sparse.line(plan::parse_budget(text))});
    }
    for (const char* text : {"512", "1024", "10%", "64", "4096", "25%"}) {
      const plan::Budget budget = plan::parse_budget(text);
      const std::optional<int> from = faster_from(speed, "tidal", budget);
      ASSERT_TRUE(from);
      const auto faster = [&](std::int64_t tokens) {
        return sparse.ms(tokens, budget) <
               static_cast<double>(dense.fixed) + dense.context * static_cast<double>(tokens);
      };
      if (*from == kNeverFaster) {
        for (std::int64_t tokens = 1; tokens < kNeverFaster / 2; tokens *= 2) EXPECT_FALSE(faster(tokens));
      } else if (*from > 0) {
        ++crossed;
        EXPECT_TRUE(faster(*from + *from / 1000000 + 2));
        EXPECT_FALSE(faster(*from - *from / 1000000 - 2));
      } else {
        EXPECT_LE(sparse.ms(0, budget), dense.fixed);
      }
    }
  }
  EXPECT_GT(crossed, 100);
}

TEST(MeasuredMinimum, SaysNothingOfWhatWasNotMeasured) {
  plan::SpeedProfile speed{"P", 1, "bf16", 4000, {10, 2}, {15, 3}, {}};
  speed.methods = {{"tidal", "512", "", {12, 1}},
                   {"kascade", "10%", "prefill=dense", {11, 1}},
                   {"omnikv", "512", "filters=2", {11, 1}}};
  EXPECT_EQ(faster_from(speed, "tidal", plan::parse_budget("512")), 2001);
  EXPECT_EQ(faster_from(speed, "kascade", plan::parse_budget("10%")), 1001);
  EXPECT_FALSE(faster_from(speed, "tidal", plan::parse_budget("1024"))) << "one number of tokens tells of no other";
  EXPECT_FALSE(faster_from(speed, "tidal", plan::parse_budget("p=0.9")));
  EXPECT_FALSE(faster_from(speed, "omnikv", plan::parse_budget("512"))) << "with options of its own";
  EXPECT_FALSE(faster_from(speed, "quest", plan::parse_budget("512")));
  speed.methods[0].time.ms_per_1000 = 2;
  EXPECT_EQ(faster_from(speed, "tidal", plan::parse_budget("512")), kNeverFaster);
}

TEST(MeasuredMinimum, OfAPlanWithoutOptionsOfItsOwn) {
  plan::SpeedProfile speed{"P", 1, "bf16", 4000, {10, 2}, {15, 3}, {}};
  for (const char* method : {"tidal", "kascade"}) {
    speed.methods.push_back({method, "512", method == std::string_view("kascade") ? "prefill=dense" : "", {12, 1}});
  }
  const plan::ModelShape shape{"llama", "", 8, 8, 4, 64, 8192};
  const auto of = [&](const char* method, const PolicyOptions& options) {
    return measured_minimum(speed, options, make_plan(method, shape, options));
  };
  PolicyOptions options;
  EXPECT_FALSE(of("full", options));
  options.budget = plan::parse_budget("512");
  EXPECT_EQ(of("tidal", options), 2001);
  EXPECT_FALSE(of("kascade", options)) << "it reads prompts sparsely";
  options.extra["prefill"] = "dense";
  EXPECT_EQ(of("kascade", options), 2001);
  options.extra.clear();
  options.local = 32;
  EXPECT_FALSE(of("tidal", options));
}

}  // namespace
}  // namespace glimpse::policies
