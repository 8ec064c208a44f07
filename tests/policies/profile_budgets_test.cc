// A profile's budgets in the plans of methods: what each set must hold, by hand.
#include "glimpse/policies/profile_budgets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "tests/policies/method_plans.h"
#include "tests/policies/shapes.h"

namespace glimpse::policies {
namespace {

using plan::BudgetRule;
using testing::HasSubstr;

constexpr std::int64_t kContext = 1000;

/// A budget that tells layer and head: 16 for head 0 of layer 0, and so on.
plan::Profile numbered(const plan::ModelShape& shape) {
  plan::Profile profile = plan::empty_profile(shape);
  profile.budget = plan::BudgetProfile{.context = kContext, .coverage = 0.9};
  for (int i = 0; i < shape.layers * shape.kv_heads; ++i) profile.budget->tokens.push_back(16 * (i + 1));
  return profile;
}

PolicyOptions by_profile(const plan::Profile& profile, std::map<std::string, std::string> extra = {}) {
  PolicyOptions options;
  set_budget(options, "profile");
  options.extra = std::move(extra);
  options.profile = &profile;
  return options;
}

const plan::Budget& budget_of(const plan::Plan& plan, int layer, int head) {
  return plan.selectors[static_cast<std::size_t>(plan.role(layer, head).selector)].budget;
}

TEST(ProfileBudgets, AHeadThatReadsItsOwnSetHasItsOwn) {
  const plan::Profile profile = numbered(kMha);
  const plan::Plan plan = make_plan("oracle", kMha, by_profile(profile, {{"set", "kv-head"}}));
  for (int layer = 1; layer < kMha.layers; ++layer) {
    for (int head = 0; head < kMha.kv_heads; ++head) {
      const plan::Budget& budget = budget_of(plan, layer, head);
      const int tokens = 16 * (layer * kMha.kv_heads + head + 1);
      EXPECT_EQ(budget.rule, BudgetRule::ratio);
      EXPECT_EQ(plan::budget_tokens(budget, kContext), tokens);
      EXPECT_EQ(budget.at_least, tokens);
      EXPECT_EQ(plan::budget_tokens(budget, 10), 10);                // all of a short context
      EXPECT_EQ(plan::budget_tokens(budget, kContext / 2), tokens);  // never fewer tokens
      const std::int64_t longer = plan::budget_tokens(budget, 100 * kContext);
      EXPECT_GE(longer, 100 * tokens);  // the same share, rounded up to a hundredth of a percent
      EXPECT_LE(longer, 100 * tokens + 10);
    }
  }
  EXPECT_EQ(plan.selectors.size(), 12u);
  EXPECT_EQ(plan::from_json(plan::to_json(plan)), plan);
}

TEST(ProfileBudgets, ASetThatIsReadElsewhereHasTheMostOfItsReaders) {
  const plan::Profile profile = numbered(kMha);
  // Layer 1 selects and reads all; layers 2 and 3 read its sets, each head its own index.
  const plan::Plan plan = make_plan("tidal", kMha, by_profile(profile, {{"select", "1"}, {"reselect", "none"}}));
  for (int head = 0; head < 4; ++head)
    EXPECT_EQ(plan::budget_tokens(budget_of(plan, 1, head), kContext), 16 * (13 + head));
  // One set for the layer: the most of all heads.
  const plan::Plan one =
      make_plan("tidal", kMha, by_profile(profile, {{"select", "1"}, {"reselect", "none"}, {"set", "layer"}}));
  ASSERT_EQ(one.selectors.size(), 1u);
  EXPECT_EQ(plan::budget_tokens(one.selectors[0].budget, kContext), 256);
}

TEST(ProfileBudgets, AnchorsCountTheirOwnHeadsAndTheMap) {
  plan::Profile profile = numbered(kMha);
  std::reverse(profile.budget->tokens.begin(), profile.budget->tokens.end());  // 256 for head 0 of layer 0
  profile.kascade = plan::KascadeProfile{{0, 2}, {0, 1, 2, 3, 3, 3, 1, 0, 0, 1, 2, 3, 1, 0, 3, 2}};
  const plan::Plan plan = make_plan("kascade", kMha, by_profile(profile));
  // Layer 0 reads everything: what counts is layer 1, whose heads 0 and 1 read head 3, 2 reads 1, 3 reads 0.
  const std::array<int, 4> first{144, 160, 0, 192};
  for (const int head : {0, 1, 3}) {
    EXPECT_EQ(plan::budget_tokens(budget_of(plan, 0, head), kContext), first[static_cast<std::size_t>(head)]) << head;
  }
  EXPECT_EQ(plan.role(0, 2).kind, plan::RoleKind::dense);  // nobody reads it
  // Layer 2 reads its own sets; none of its readers needs more.
  for (int head = 0; head < 4; ++head)
    EXPECT_EQ(plan::budget_tokens(budget_of(plan, 2, head), kContext), 128 - 16 * head);
  EXPECT_TRUE(plan.prefill.sparse);
}

TEST(ProfileBudgets, HoldsWholeBlocksAndTheMethodsLeast) {
  plan::Profile profile = numbered(kMha);
  for (int& tokens : profile.budget->tokens) tokens = 70;
  const plan::Plan quest = make_plan("quest", kMha, by_profile(profile));
  ASSERT_EQ(quest.selectors.size(), 1u);
  EXPECT_EQ(plan::budget_tokens(quest.selectors[0].budget, kContext), 80);  // five pages of 16
  PolicyOptions wide = by_profile(profile);
  wide.block = 64;
  const plan::Plan pages = make_plan("quest", kMha, wide);
  EXPECT_EQ(plan::budget_tokens(pages.selectors[0].budget, kContext), 192);  // Quest's three pages
  PolicyOptions window = by_profile(profile, {{"set", "kv-head"}});
  window.local = 100;
  const plan::Plan local = make_plan("oracle", kMha, window);
  EXPECT_EQ(plan::budget_tokens(local.selectors[0].budget, kContext), 100);
}

TEST(ProfileBudgets, KeepsResidentWhatAStepReads) {
  const plan::Profile profile = numbered(kMha);
  const plan::Plan plan = make_plan("arkvale", kMha, by_profile(profile));
  for (const plan::Role& role : plan.roles) {
    if (role.kind != plan::RoleKind::select) continue;
    const plan::Budget& reads = plan.selectors[static_cast<std::size_t>(role.selector)].budget;
    const plan::Budget& kept = plan.retentions[static_cast<std::size_t>(role.retention)].budget;
    EXPECT_DOUBLE_EQ(kept.value, std::min(1.0, 2 * reads.value));
    EXPECT_EQ(kept.at_least, 2 * reads.at_least);
  }
}

/// Every method and shape: a valid plan that survives its text, or a refusal in one line.
TEST(ProfileBudgets, EveryMethodTakesOrRefusesThem) {
  const std::set<std::string_view> never{"full", "streaming", "evosparse", "h2o", "tova", "duo", "razor", "raas"};
  for (const Policy& policy : registry()) {
    for (const plan::ModelShape& shape : shapes()) {
      const plan::Profile profile = numbered(shape);
      std::map<std::string, std::string> needed;
      for (const OptionHelp& option : policy.options) {
        if (option.needed) needed[std::string(option.key)] = "gates.gguf";
      }
      const PolicyOptions options = by_profile(profile, needed);
      const std::string why = refused(policy.name, shape, options);
      if (never.contains(policy.name)) {
        EXPECT_THAT(why, HasSubstr("--attn-budget profile has no meaning for it")) << policy.name;
        EXPECT_EQ(why.find('\n'), std::string::npos);
      } else if (why.empty()) {
        const plan::Plan plan = make_plan(policy.name, shape, options);
        EXPECT_EQ(plan::from_json(plan::to_json(plan)), plan) << policy.name;
        EXPECT_FALSE(plan::explain(plan).empty());
      } else {
        EXPECT_THAT(why, HasSubstr("selects no tokens")) << policy.name << " " << shape.layers;
        EXPECT_LE(shape.layers, 5) << policy.name << ": " << why;  // too few for its layers
      }
    }
  }
}

TEST(ProfileBudgets, RefusesWhatHasNone) {
  PolicyOptions options;
  set_budget(options, "profile");
  EXPECT_THAT(refused("quest", kMha, options), HasSubstr("'glimpse calibrate budget -m MODEL' makes one"));
  plan::Profile other = plan::empty_profile(kMha);
  other.tidal = plan::TidalProfile{3};
  options.profile = &other;
  EXPECT_THAT(refused("tidal", kMha, options), HasSubstr("there is no profile with budgets"));
  const plan::Profile smol = numbered(kSmol);
  EXPECT_THAT(refused("quest", kMha, by_profile(smol)), HasSubstr("calibrate this model"));
  set_budget(options, "512");
  EXPECT_FALSE(options.profile_budget);
  EXPECT_EQ(options.budget, (plan::Budget{BudgetRule::tokens, 512}));
  EXPECT_THROW(set_budget(options, "profiles"), UserError);
}

TEST(ProfileBudgets, LeavesAGuessAGuess) {
  const plan::Profile profile = numbered(kSmol);  // no layer that selects again
  std::vector<std::string> warnings;
  PolicyOptions options = by_profile(profile);
  options.warnings = &warnings;
  make_plan("tidal", kSmol, options);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("selects again, by relative depth"));
}

}  // namespace
}  // namespace glimpse::policies
