#include <gmock/gmock.h>

#include "glimpse/base/error.h"
#include "glimpse/policies/policy.h"
#include "shapes.h"

namespace glimpse::policies {
namespace {

using testing::HasSubstr;

PolicyOptions with(std::string_view budget) {
  PolicyOptions options;
  options.budget = plan::parse_budget(budget);
  return options;
}

void expect_stream(const plan::Plan& plan, int sink, int local, const plan::Budget& budget) {
  ASSERT_EQ(plan.selectors.size(), 1u);
  ASSERT_EQ(plan.retentions.size(), 1u);
  EXPECT_TRUE(plan.selectors[0].terms.empty());
  EXPECT_EQ(plan.selectors[0].sink, sink);
  EXPECT_EQ(plan.selectors[0].local, local);
  EXPECT_EQ(plan.selectors[0].budget, budget);
  EXPECT_EQ(plan.retentions[0], (plan::Retention{plan::RetentionRule::window, sink, budget}));
  for (const plan::Role& role : plan.roles) {
    EXPECT_EQ(role, (plan::Role{.kind = plan::RoleKind::stream, .selector = 0, .retention = 0}));
  }
}

TEST(Streaming, StreamsEveryHeadOfEveryLayer) {
  for (const plan::ModelShape& shape : shapes()) {
    expect_stream(make_plan("streaming", shape, {}), 4, 1020, {plan::BudgetRule::tokens, 1024});
    expect_stream(make_plan("streaming", shape, with("64")), 4, 60, {plan::BudgetRule::tokens, 64});
    expect_stream(make_plan("streaming", shape, with("30%")), 4, 0, {plan::BudgetRule::ratio, 0.3, 5});
  }
}

TEST(Streaming, SinkComesOutOfTheBudget) {
  const plan::ModelShape shape = shapes().back();
  PolicyOptions options = with("100");
  options.sink = 16;
  expect_stream(make_plan("streaming", shape, options), 16, 84, {plan::BudgetRule::tokens, 100});
  options.sink = 0;
  expect_stream(make_plan("streaming", shape, options), 0, 100, {plan::BudgetRule::tokens, 100});
  options.sink = 99;
  expect_stream(make_plan("streaming", shape, options), 99, 1, {plan::BudgetRule::tokens, 100});
}

TEST(Streaming, PrefillsDenselyOrInTiles) {
  const plan::ModelShape shape{"llama", "", 32, 32, 8, 128, 131072};
  PolicyOptions options = with("30%");
  EXPECT_EQ(make_plan("streaming", shape, options).prefill, plan::Prefill{});
  options.extra["prefill"] = "sparse";
  EXPECT_EQ(make_plan("streaming", shape, options).prefill, (plan::Prefill{.sparse = true, .tile_rows = 128}));
  options.extra["tile"] = "64";
  EXPECT_EQ(make_plan("streaming", shape, options).prefill.tile_rows, 64);
  options.extra["tile"] = "3";
  EXPECT_THROW(make_plan("streaming", shape, options), UserError) << "less than a token of the group";
}

TEST(Streaming, RefusesInWords) {
  const plan::ModelShape shape = shapes().back();
  const auto says = [&](const PolicyOptions& options) {
    try {
      make_plan("streaming", shape, options);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(says(with("4")), HasSubstr("give --attn-budget 5 or more"));
  EXPECT_THAT(says(with("p=0.9")), HasSubstr("computes no scores"));
  EXPECT_THAT(says(with("tau=0.1")), HasSubstr("computes no scores"));
  PolicyOptions local;
  local.local = 64;
  EXPECT_THAT(says(local), HasSubstr("what the budget leaves"));
  PolicyOptions tile;
  tile.extra["tile"] = "64";
  EXPECT_THAT(says(tile), HasSubstr("give prefill=sparse"));
  PolicyOptions block;
  block.block = 16;
  EXPECT_THAT(says(block), HasSubstr("--attn-block"));
}

}  // namespace
}  // namespace glimpse::policies
