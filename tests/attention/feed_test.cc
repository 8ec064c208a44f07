// What flows back into heat and statistics, against the papers' formulas in double.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "glimpse/attention/forget.h"
#include "glimpse/attention/heat.h"
#include "glimpse/policies/policy.h"

namespace glimpse::attention {
namespace {

const plan::ModelShape kShape{"llama", "", 6, 6, 2, 32, 4096};

plan::Plan heated() {
  policies::PolicyOptions options;
  options.budget = plan::parse_budget("96");
  plan::Plan plan = policies::make_plan("evosparse", kShape, options);
  plan.heat = {0.75, false, 2};
  plan.prefill.observe = plan::Observe::last_rows;
  plan.prefill.observe_rows = 8;
  return plan;
}

class Heated : public ::testing::Test {
 protected:
  Heated() {
    rows_.program = &program_;
    rows_.state = &state_;
    rows_.kind = PassKind::prompt;
    rows_.position = 90;
    rows_.rows = 10;
    rows_.prompt_end = 100;
    state_.heat.of(0) = {1, 2, 4};
  }

  Program program_{heated()};
  SequenceState state_{heated()};
  SequenceRows rows_;
};

TEST_F(Heated, EachObservedRowIsAStepOfTheHeat) {
  state_.decode_steps = 3;  // so that there was heat before
  fade_heat(rows_);
  for (int b = 0; b < 3; ++b) {
    EXPECT_FLOAT_EQ(state_.heat.of(0)[static_cast<std::size_t>(b)], static_cast<float>(std::pow(0.75, 8) * (1 << b)));
  }
}

TEST_F(Heated, TheFirstPieceOfASeedIsTheWholeOfTheHeatAndTheNextOnesFadeIt) {
  fade_heat(rows_);
  EXPECT_EQ(state_.heat.of(0), (std::vector<float>{0, 0, 0}));
  state_.heat.of(0) = {1, 2, 4};
  rows_.position = 95;  // three of the eight rows came before
  rows_.rows = 5;
  fade_heat(rows_);
  EXPECT_FLOAT_EQ(state_.heat.of(0)[2], static_cast<float>(std::pow(0.75, 5) * 4));
}

TEST_F(Heated, APromptsRowsGiveTheirMeanOverLayersAndQueryHeads) {
  const std::vector<double> sums{24, 48, 0, 12};
  add_prompt_heat(rows_, 3, sums);
  EXPECT_EQ(state_.heat.of(3), (std::vector<float>{2, 4, 4, 0.5}));  // four layers from the third on, six heads
}

TEST_F(Heated, ADraftsStepWaits) {
  rows_.kind = PassKind::draft;
  add_step_heat(rows_, {{1, 1, 1, 8}});
  EXPECT_EQ(state_.heat.of(0), (std::vector<float>{1, 2, 4}));
  ASSERT_EQ(state_.drafted_heat.size(), 1u);
  rows_.kind = PassKind::decode;
  add_step_heat(rows_, {{1, 1, 1, 8}});
  EXPECT_EQ(state_.heat.of(0), (std::vector<float>{1.75, 2.5, 4, 8}));
  EXPECT_EQ(state_.drafted_heat.size(), 1u);
}

TEST_F(Heated, AStepThatIsTakenBackLeavesNothing) {
  rows_.kind = PassKind::decode;
  state_.decode_steps = 5;
  add_step_heat(rows_, {{1, 1, 1}});
  const std::vector<float> before = state_.heat.of(0);
  state_.heat.of(0).resize(4);  // for a block that begins
  add_step_heat(rows_, {{1, 1, 1, 8}});
  ++state_.decode_steps;
  state_.take_back_step(3 * state_.heat.block());
  EXPECT_EQ(state_.heat.of(0), before);
  EXPECT_EQ(state_.decode_steps, 5);
}

TEST(PromptStatistics, AreSumsOrTheLastRowsMean) {
  // Two pieces of sums over four slots, of which the second is free and the others' tokens lie at 0, 2 and 5.
  const std::vector<float> sums{3, 9, 6, 1.5, -1, 1, 9, 0, 4.5};
  const std::vector<std::int32_t> positions{0, -1, 2, 5};
  const PromptFeed feed{sums.data(), 2, 5, positions.data(), 4, 3};
  std::vector<float> statistic{1, 1, 1};
  feed_prompt(plan::RetentionRule::accumulated, feed, 7, statistic);
  EXPECT_EQ(statistic, (std::vector<float>{5, 1, 7, 0, 0, 6, 0}));
  feed_prompt(plan::RetentionRule::last_probability, feed, 7, statistic);
  const std::vector<float> means{4.0F / 3, 0, 2, 0, 0, 2, 0};
  for (std::size_t i = 0; i < means.size(); ++i) EXPECT_FLOAT_EQ(statistic[i], means[i]) << i;
}

}  // namespace
}  // namespace glimpse::attention
