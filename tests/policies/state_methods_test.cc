// Methods with state between steps: EvoSparse, H2O, TOVA, RaaS, DuoAttention, RazorAttention.
#include <gmock/gmock.h>

#include <set>

#include "method_plans.h"

namespace glimpse::policies {
namespace {

using plan::Budget;
using plan::BudgetRule;
using plan::GroupPooling;
using plan::HeadPooling;
using plan::RoleKind;
using plan::Source;
using testing::ElementsAre;
using testing::HasSubstr;

plan::Profile scores_for(const plan::ModelShape& shape, const std::vector<std::pair<int, int>>& strong) {
  plan::Profile profile;
  profile.model = shape;
  profile.model.context = 0;
  profile.retrieval = plan::RetrievalProfile{std::vector<double>(static_cast<std::size_t>(shape.layers * shape.heads))};
  double score = 1;
  for (const auto& [layer, head] : strong) {
    profile.retrieval->scores[static_cast<std::size_t>(layer * shape.heads + head)] = score;
    score -= 0.01;
  }
  return profile;
}

const plan::Term kHeat{Source::heat, GroupPooling::none};

plan::Term retrieval(std::vector<int> heads, double tokens) {
  plan::Term term{Source::dot, GroupPooling::none, HeadPooling::max};
  term.query_heads = std::move(heads);
  term.budget = Budget{BudgetRule::tokens, tokens};
  return term;
}

// 5 retrieval heads of 5 blocks at 256, as the paper's table; three layers have some.
TEST(EvoSparse, SetsOfALayer) {
  const plan::Profile profile = scores_for(kSmol, {{5, 1}, {5, 7}, {9, 0}, {20, 3}, {20, 4}, {0, 0}, {1, 1}});
  PolicyOptions options = opts({}, "256");
  options.profile = &profile;
  std::vector<std::string> warnings;
  options.warnings = &warnings;
  const plan::Plan plan = make_plan("evosparse", kSmol, options);
  EXPECT_TRUE(warnings.empty());
  EXPECT_EQ(letters(plan), "DDsRRsRRRsRRRRRRRRRRsRRRRRRRRR");
  for (int layer = 0; layer < 30; ++layer) {
    for (int head = 0; head < 3; ++head) {
      const plan::Role& role = plan.role(layer, head);
      if (role.kind == RoleKind::reuse) {
        EXPECT_EQ(role.reads, (plan::SlotId{layer < 5 ? 2 : layer < 9 ? 5 : layer < 20 ? 9 : 20, 0})) << layer;
      }
    }
  }
  ASSERT_EQ(plan.selectors.size(), 4u);
  for (const plan::Selector& s : plan.selectors) {
    EXPECT_EQ(s.per, plan::SetPer::layer);
    EXPECT_EQ(s.block, 16);
    EXPECT_EQ(s.sink, 16);
    EXPECT_EQ(s.local, 64);
    EXPECT_TRUE(s.counts_local);
    EXPECT_EQ(s.budget, (Budget{BudgetRule::tokens, 256}));
  }
  const auto terms = [&](int layer) {
    return plan.selectors[static_cast<std::size_t>(plan.role(layer, 0).selector)].terms;
  };
  EXPECT_THAT(terms(2), ElementsAre(kHeat)) << "before the first retrieval layer nothing is propagated";
  EXPECT_THAT(terms(5), ElementsAre(retrieval({1, 7}, 80), kHeat));
  EXPECT_THAT(terms(9), ElementsAre(retrieval({0}, 80), kHeat));
  EXPECT_THAT(terms(20), ElementsAre(retrieval({3, 4}, 80), kHeat));
  EXPECT_EQ(plan.feedback, plan::Feedback::probabilities);
  EXPECT_EQ(plan.heat, (plan::Heat{0.99609375, false, 2}));
  EXPECT_EQ(plan.prefill, (plan::Prefill{.observe = plan::Observe::last_rows, .observe_rows = 32}));
}

TEST(EvoSparse, HeatOfALayerMakesEveryLayerSelect) {
  const plan::Profile profile = scores_for(kSmol, {{5, 1}, {9, 0}});
  PolicyOptions options = opts({{"heat", "layer"}, {"retrieval-heads", "2"}}, "256");
  options.profile = &profile;
  const plan::Plan plan = make_plan("evosparse", kSmol, options);
  EXPECT_EQ(letters(plan), "DD" + std::string(28, 's'));
  EXPECT_TRUE(plan.heat.per_layer);
  for (int layer = 2; layer < 30; ++layer) {
    const bool retrieves = layer == 5 || layer == 9;
    const plan::SlotId reads = retrieves || layer < 5 ? plan::SlotId{} : plan::SlotId{layer < 9 ? 5 : 9, 0};
    EXPECT_EQ(plan.role(layer, 1).reads, reads) << layer;
    EXPECT_EQ(plan.combine[static_cast<std::size_t>(layer)],
              reads.layer < 0 ? plan::Combine::none : plan::Combine::union_sets);
  }
}

int query_heads(const plan::Plan& plan) {
  int count = 0;
  for (const plan::Selector& s : plan.selectors) {
    for (const plan::Term& term : s.terms) count += static_cast<int>(term.query_heads.size());
  }
  return count;
}

TEST(EvoSparse, SettingsByBudget) {
  const struct {
    const char* budget;
    int local, heads, blocks;
  } rows[] = {
      {"4096", 128, 20, 15},
      {"2048", 128, 15, 10},
      {"1024", 128, 10, 7},
      {"512", 64, 10, 5},
      {"256", 64, 5, 5},
      // Between: 768 is half way from 512 to 1024 and 384 from 256; 3072 from 2048 to 4096. Beyond: the last row.
      {"768", 96, 10, 6},
      {"384", 64, 8, 5},
      {"3072", 128, 18, 13},
      {"8192", 128, 20, 15},
      // Below 256 window and blocks shrink with the budget.
      {"128", 32, 5, 2},
      {"64", 16, 5, 1},
  };
  for (const auto& row : rows) {
    const plan::Plan plan = make_plan("evosparse", kLlama8B, opts({}, row.budget));
    const plan::Selector& last = plan.selectors.back();
    EXPECT_EQ(last.local, row.local) << row.budget;
    EXPECT_EQ(query_heads(plan), row.heads) << row.budget;
    EXPECT_EQ(last.terms[0].budget->value, row.blocks * 16) << row.budget;
  }
  // A share is set up for the longest context: 10 % of 8192 is 819.
  EXPECT_EQ(query_heads(make_plan("evosparse", kSmol, opts({}, "10%"))), 10);
  EXPECT_EQ(query_heads(make_plan("evosparse", kLlama8B, opts({{"retrieval-heads", "3"}}))), 3);
  EXPECT_EQ(make_plan("evosparse", kLlama8B, opts({{"retrieval-blocks", "2"}})).selectors.back().terms[0].budget->value,
            32);
}

TEST(EvoSparse, SpreadsHeadsOverTheLayersWithoutAProfile) {
  for (const plan::ModelShape& shape : {kLlama8B, kSmol, kQwen}) {
    std::vector<std::string> warnings;
    PolicyOptions options;
    options.warnings = &warnings;
    const plan::Plan plan = make_plan("evosparse", shape, options);
    EXPECT_THAT(warnings, ElementsAre(HasSubstr("10 retrieval heads are evenly spread")));
    int layers = 0, first = -1, last = -1;
    for (int layer = 0; layer < shape.layers; ++layer) {
      const plan::Role& role = plan.role(layer, 0);
      if (role.kind != RoleKind::select) continue;
      if (plan.selectors[static_cast<std::size_t>(role.selector)].terms.size() < 2) continue;
      ++layers;
      EXPECT_GE(layer, 2);
      EXPECT_TRUE(last < 0 || layer - last <= 4);
      if (first < 0) first = layer;
      last = layer;
    }
    EXPECT_EQ(layers, 10) << "a head a layer";
    EXPECT_LE(first, 4);
  }
}

TEST(EvoSparse, Ablations) {
  const plan::Profile profile = scores_for(kSmol, {{5, 1}, {9, 0}});
  const auto with = [&](std::map<std::string, std::string> extra) {
    PolicyOptions options = opts(std::move(extra), "256");
    options.profile = &profile;
    return make_plan("evosparse", kSmol, options);
  };
  const plan::Plan no_prop = with({{"prop", "off"}});
  EXPECT_EQ(letters(no_prop), "DDs" + std::string(27, 'R'));
  EXPECT_THAT(no_prop.selectors.at(0).terms, ElementsAre(kHeat));

  const plan::Plan no_accum = with({{"accum", "off"}, {"retrieval-heads", "2"}});
  EXPECT_EQ(letters(no_accum), "DDWWWsRRRs" + std::string(20, 'R'));
  EXPECT_EQ(no_accum.feedback, plan::Feedback::none);
  EXPECT_EQ(no_accum.prefill, plan::Prefill{});
  EXPECT_EQ(no_accum.heat, plan::Heat{});
  EXPECT_TRUE(no_accum.retentions.empty()) << "the window forgets nothing";

  EXPECT_EQ(with({{"seed", "none"}}).prefill, plan::Prefill{});
  EXPECT_EQ(with({{"lambda", "0.8"}}).heat.decay, 0.8);
  EXPECT_EQ(with({{"lambda", "1"}}).heat.decay, 1);
  EXPECT_FALSE(with({{"count-local", "off"}}).selectors[0].counts_local);
  EXPECT_THAT(refused("evosparse", kSmol, opts({{"prop", "off"}, {"accum", "off"}})), HasSubstr("nothing is left"));
  EXPECT_THAT(refused("evosparse", kSmol, opts({{"lambda", "1.01"}})), HasSubstr("lambda=1.01"));
  EXPECT_THAT(refused("evosparse", kSmol, opts({{"retrieval-heads", "999"}})), HasSubstr("retrieval-heads=999"));
  EXPECT_THAT(refused("evosparse", kSmol, opts({{"accum", "off"}, {"lambda", "0.5"}})), HasSubstr("there is no heat"));
  for (const int block : {32, 64}) {
    PolicyOptions options = opts({}, "512");
    options.block = block;
    const plan::Selector s = make_plan("evosparse", kSmol, options).selectors.back();
    EXPECT_EQ(s.block, block);
    EXPECT_EQ(s.terms[0].budget->value, block == 32 ? 96 : 128) << "80 tokens, in whole blocks";
  }
}

TEST(H2o, RecentTokensAndHeavyHitters) {
  const plan::Plan plan = make_plan("h2o", kSmol, opts({}, "512"));
  expect_all_forget(plan, {.rule = plan::RetentionRule::accumulated, .budget = {BudgetRule::tokens, 512}});
  EXPECT_EQ(plan.retentions[0].recent_share, 0.5);
  EXPECT_EQ(plan.retentions[0].per, plan::SetPer::kv_head);
  EXPECT_EQ(plan.prefill.observe, plan::Observe::all);
  EXPECT_EQ(make_plan("h2o", kSmol, opts({{"recent", "0.25"}})).retentions[0].recent_share, 0.25);
}

TEST(Tova, TheLeastProbableTokenOfTheLayerGoes) {
  const plan::Plan plan = make_plan("tova", kSmol, opts({}, "512"));
  expect_all_forget(
      plan,
      {.rule = plan::RetentionRule::last_probability, .budget = {BudgetRule::tokens, 512}, .per = plan::SetPer::layer});
  EXPECT_EQ(plan.prefill, (plan::Prefill{.observe = plan::Observe::last_rows, .observe_rows = 1}));
}

TEST(Raas, GeneratedTokensByStamp) {
  const plan::Plan plan = make_plan("raas", kSmol, opts({}, "512"));
  expect_all_forget(plan, {.rule = plan::RetentionRule::stamps, .budget = {BudgetRule::tokens, 512}});
  EXPECT_EQ(plan.prefill, plan::Prefill{});
}

int dense_heads(const plan::Plan& plan) {
  int count = 0;
  for (const plan::Role& role : plan.roles) {
    if (role.kind == RoleKind::dense) {
      EXPECT_EQ(role, plan::Role{});
      ++count;
    } else {
      EXPECT_EQ(role, (plan::Role{.kind = RoleKind::stream, .selector = 0, .retention = 0}));
    }
  }
  return count;
}

TEST(Duo, RetrievalHeadsAreDenseAndTheOthersStream) {
  const plan::Plan plan = make_plan("duo", kLlama8B, opts({}, "512"));
  EXPECT_EQ(dense_heads(plan), 128);
  plan::Selector expected;
  expected.sink = 4;
  expected.local = 508;
  expected.budget = {BudgetRule::tokens, 512};
  EXPECT_THAT(plan.selectors, ElementsAre(expected));
  EXPECT_THAT(plan.retentions,
              ElementsAre(plan::Retention{
                  .rule = plan::RetentionRule::window, .sink = 4, .budget = {BudgetRule::tokens, 512}}));
  EXPECT_EQ(dense_heads(make_plan("duo", kMha, {})), 4) << "a quarter without grouped heads";
  plan::Profile profile;
  profile.model = kMha;
  profile.model.context = 0;
  profile.roles = plan::RolesProfile{std::vector<double>(16, 0.5)};
  profile.roles->probability[6] = 0.51;
  PolicyOptions options;
  options.profile = &profile;
  const plan::Plan trained = make_plan("duo", kMha, options);
  EXPECT_EQ(dense_heads(trained), 1);
  EXPECT_EQ(trained.role(1, 2).kind, RoleKind::dense);
  // Beside scores roles are LycheeDecode's: a quarter of the heads, the strongest by score.
  plan::Profile both = scores_for(kMha, {{3, 1}, {0, 2}});
  both.roles = profile.roles;
  options.profile = &both;
  const plan::Plan scored = make_plan("duo", kMha, options);
  EXPECT_EQ(dense_heads(scored), 4);
  EXPECT_EQ(scored.role(3, 1).kind, RoleKind::dense);
  EXPECT_EQ(scored.role(0, 2).kind, RoleKind::dense);
}

TEST(Razor, OneTokenStandsForTheDropped) {
  const plan::Plan plan = make_plan("razor", kLlama8B, opts({}, "512"));
  EXPECT_EQ(dense_heads(plan), 38) << "15 % of 256";
  EXPECT_TRUE(plan.retentions.at(0).compensates);
  plan::Profile profile = scores_for(kMha, {{3, 1}, {0, 2}});
  profile.roles = plan::RolesProfile{std::vector<double>(16, 1)};
  PolicyOptions options = opts({{"retrieval", "2"}});
  options.profile = &profile;
  const plan::Plan scored = make_plan("razor", kMha, options);
  EXPECT_EQ(dense_heads(scored), 2) << "retrieval scores before roles";
  EXPECT_EQ(scored.role(3, 1).kind, RoleKind::dense);
  EXPECT_EQ(scored.role(0, 2).kind, RoleKind::dense);
}

TEST(Razor, TakesTheStrongestOfAProfileThatHasOnlyRoles) {
  plan::Profile profile;
  profile.model = kMha;
  profile.model.context = 0;
  profile.roles = plan::RolesProfile{std::vector<double>(16, 0.6)};
  profile.roles->probability[6] = 0.9;
  profile.roles->probability[13] = 0.7;
  PolicyOptions options;
  options.profile = &profile;
  const plan::Plan plan = make_plan("razor", kMha, options);
  EXPECT_EQ(dense_heads(plan), 2) << "15 % of 16";
  EXPECT_EQ(plan.role(1, 2).kind, RoleKind::dense);
  EXPECT_EQ(plan.role(3, 1).kind, RoleKind::dense);
}

}  // namespace
}  // namespace glimpse::policies
