// Plans that would read or write out of bounds, or attend to something else than they say: refused by name before
// anything runs. And what is accepted runs: hundreds of altered plans through a small model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "glimpse/base/error.h"
#include "tests/engine/gates.h"
#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// One engine for all. One thread: short passes spend more on barriers than on work.
Engine& engine() {
  static Engine shared(options_for(reference::test_model("llama"), KvType::f32, 1));
  return shared;
}

void expect_refused(const plan::Plan& plan, const char* says) {
  EXPECT_THAT([&] { engine().open(plan); }, ThrowsMessage<UserError>(HasSubstr(says)));
}

/// Layer 2 chooses a set per layer in blocks by q.k, layer 3 joins that choice to its own; the model has four layers
/// of two KV heads with three query heads each.
plan::Plan union_plan() {
  plan::Plan plan = plan::dense_plan(engine().shape());
  plan::Selector chooses;
  chooses.per = plan::SetPer::layer;
  chooses.block = 16;
  chooses.budget = {plan::BudgetRule::tokens, 64};
  plan::Term term{plan::Source::dot, plan::GroupPooling::none, plan::HeadPooling::max};
  term.query_heads = {0, 4};
  term.budget = plan::Budget{plan::BudgetRule::tokens, 32};
  chooses.terms = {term};
  plan.selectors = {chooses, chooses};
  plan.combine[3] = plan::Combine::union_sets;
  for (int head = 0; head < 2; ++head) {
    plan.role(2, head) = {.kind = plan::RoleKind::select, .selector = 0, .attends_set = true};
    plan.role(3, head) = {.kind = plan::RoleKind::select, .selector = 1, .attends_set = true, .reads = {2, 0}};
  }
  return plan;
}

TEST(UnsoundPlans, AnotherHeadDimensionIsRefused) {
  for (const char* policy : {"quest", "razor", "clusterkv"}) {
    plan::Plan plan = make(engine(), policy, budget("64"));
    plan.shape.head_dim /= 2;
    expect_refused(plan, "heads of 16 values");
  }
}

TEST(UnsoundPlans, UnionsThatDoNotFitAreRefused) {
  EXPECT_NO_THROW(engine().open(union_plan()));
  plan::Plan plan = union_plan();
  plan.selectors[1].block = 32;
  expect_refused(plan, "joins blocks of 16 from (layer 2, head 0) to blocks of 32");
  plan = union_plan();
  plan.selectors[1].terms[0] = {plan::Source::dot, plan::GroupPooling::max_score, plan::HeadPooling::max};
  expect_refused(plan, "own term has no budget");
  plan = union_plan();
  plan.selectors[0].terms[0] = {plan::Source::dot, plan::GroupPooling::max_score, plan::HeadPooling::max};
  expect_refused(plan, "no budgeted q.k term chose");
  plan = union_plan();
  plan.role(3, 1).reads = {};
  expect_refused(plan, "what it joins must be what head 0 joins");
  plan = union_plan();
  plan.role(3, 0).reads = plan.role(3, 1).reads = {};
  expect_refused(plan, "joins no earlier layer's set");
}

TEST(UnsoundPlans, HeatIsKeptInOneBlock) {
  plan::Plan plan = make(engine(), "evosparse", budget("96", {{"prop", "off"}, {"heat", "layer"}}));
  const int first = plan.role(2, 0).selector;
  plan.selectors.push_back(plan.selectors[static_cast<std::size_t>(first)]);
  plan.selectors.back().block = 32;
  plan.selectors.back().budget.value = 256;
  for (int head = 0; head < 2; ++head) plan.role(3, head).selector = static_cast<int>(plan.selectors.size()) - 1;
  expect_refused(plan, "heat is kept in one");
}

TEST(UnsoundPlans, OneSetPerLayerIsReadAlike) {
  plan::Plan plan = make(engine(), "tidal", budget("48", {{"set", "layer"}}));
  plan.role(2, 1).attends_set = true;
  expect_refused(plan, "attends_set must be that of head 0");
}

TEST(UnsoundPlans, ASetOfTheSameLayerIsRefused) {
  plan::Plan plan = make(engine(), "tidal", budget("48"));
  plan.combine[2] = plan::Combine::union_sets;
  plan.role(2, 1) = {.kind = plan::RoleKind::reuse, .reads = {2, 0}};
  for (int head = 0; head < 2; ++head) plan.role(3, head) = {.kind = plan::RoleKind::reuse, .reads = {2, 0}};
  expect_refused(plan, "reads its own layer");
}

TEST(UnsoundPlans, HeatBesideSetsPerQueryHeadIsRefused) {
  plan::Plan plan = make(engine(), "evosparse", budget("96", {{"prop", "off"}}));
  const plan::Plan other = make(engine(), "oracle", budget("48"));
  plan.selectors.push_back(other.selectors[0]);
  const int with = static_cast<int>(plan.selectors.size()) - 1;
  for (int head = 0; head < 2; ++head) {
    plan.role(3, head) = {.kind = plan::RoleKind::select, .selector = with, .attends_set = true};
  }
  expect_refused(plan, "heat beside sets per query head");
}

TEST(UnsoundPlans, PartsPoolByMaxAndNamedHeadsScoreAlone) {
  plan::Plan plan = union_plan();
  plan.selectors[0].terms[0].heads = plan::HeadPooling::rank_merge;
  expect_refused(plan, "pools otherwise than by max");
  plan = union_plan();
  for (int head = 0; head < 2; ++head) plan.role(2, head).attends_set = false;
  expect_refused(plan, "some query heads where the heads attend to everything");
}

TEST(UnsoundPlans, TilesPoolByMeanAlone) {
  plan::Plan plan = make(engine(), "kascade", budget("32"));
  ASSERT_TRUE(plan.prefill.sparse);
  plan.selectors[0].terms[0].group = plan::GroupPooling::max_probability;
  expect_refused(plan, "not max-probability");
  plan = make(engine(), "kascade", budget("32", {{"set", "layer"}}));
  plan.selectors[0].terms[0].heads = plan::HeadPooling::max;
  expect_refused(plan, "heads of a layer by mean, not max");
}

// One tile a token: its set is what decoding that token chooses, but that a tile's own tokens are beside its budget.
TEST(SparsePrefill, TilesOfOneTokenChooseWhatDecodingChooses) {
  Engine& shared = engine();
  const std::vector<Token> tokens = random_tokens(100, shared.tokenizer().size(), 5);
  for (const char* set : {"layer", "kv-head"}) {
    for (const char* pooling : {"query", "probability"}) {
      const policies::PolicyOptions how = budget("24", {{"set", set}, {"pooling", pooling}, {"anchors", "0+1"}});
      plan::Plan tiles = make(shared, "kascade", how);
      tiles.prefill.tile_rows = tiles.shape.group();
      plan::Plan steps = tiles;
      steps.prefill = {};
      for (plan::Selector& selector : steps.selectors) selector.budget.value += 1;
      Sequence prompt = shared.open(tiles);
      const auto all = prompt.prefill(tokens);
      const std::vector<float> got(all.begin(), all.end());
      Sequence decoded = shared.open(steps);
      std::span<const float> wanted = decoded.prefill(std::span(tokens).first(1));
      for (const Token token : std::span(tokens).subspan(1)) wanted = decoded.decode(token);
      float worst = 0, largest = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        worst = std::max(worst, std::abs(got[i] - wanted[i]));
        largest = std::max(largest, std::abs(wanted[i]));
      }
      // One row against several takes other matrix kernels: about 1e-3 of the largest.
      EXPECT_LT(worst, 2e-2F * largest) << set << " " << pooling;
    }
  }
}

// Nobody reads what head 0 of the first anchor would choose.
TEST(SparsePrefill, RunsWhereNoHeadReadsHeadZeroOfTheFirstAnchor) {
  Engine& shared = engine();
  plan::Profile profile;
  profile.model = shared.shape();
  profile.model.context = 0;
  profile.kascade = plan::KascadeProfile{{0, 2}, std::vector<int>{0, 1, 1, 1, 0, 1, 0, 1}};
  policies::PolicyOptions options = budget("32");
  options.profile = &profile;
  const std::vector<Token> tokens = random_tokens(600, shared.tokenizer().size(), 6);
  const plan::Plan plan = make(shared, "kascade", options);
  ASSERT_TRUE(plan.prefill.sparse);
  ASSERT_EQ(plan.role(1, 0).reads, (plan::SlotId{0, 1}));
  Sequence sequence = shared.open(plan);
  sequence.prefill(std::span(tokens).first(590));
  for (const Token token : std::span(tokens).subspan(590)) {
    for (const float value : sequence.decode(token)) ASSERT_TRUE(std::isfinite(value));
  }
}

// The window's tokens lie in other slots once decoding has given pages back.
TEST(SparsePrefill, MorePromptBehindForgottenTokensReadsTheSameWindow) {
  Engine& shared = engine();
  const std::vector<Token> tokens = random_tokens(560, shared.tokenizer().size(), 8);
  plan::Plan forgets = make(shared, "streaming", budget("48"));
  forgets.prefill = {.sparse = true, .tile_rows = 32};
  plan::Plan keeps = forgets;
  keeps.retentions.clear();
  for (plan::Role& role : keeps.roles) role.retention = -1;
  std::vector<std::vector<float>> logits;
  for (const plan::Plan& plan : {forgets, keeps}) {
    Sequence sequence = shared.open(plan);
    sequence.prefill(std::span(tokens).first(400));
    for (std::size_t i = 400; i < 410; ++i) sequence.decode(tokens[i]);
    EXPECT_EQ(sequence.live(2, 0).size() < 410, !plan.retentions.empty());
    const auto last = sequence.prefill(std::span(tokens).subspan(410));
    logits.emplace_back(last.begin(), last.end());
  }
  for (std::size_t i = 0; i < logits[0].size(); ++i) ASSERT_NEAR(logits[0][i], logits[1][i], 1e-3) << i;
}

/// Alters a plan in a few places: numbers, words, and roles copied from elsewhere.
class Mutator {
 public:
  explicit Mutator(std::uint32_t seed) : random_(seed) {}

  void alter(plan::Plan& plan) {
    for (int i = below(3) + 1; i > 0; --i) alter_once(plan);
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint32_t>(n)); }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int>(values.size()))];
  }
  template <class T>
  T word(int count) {
    return static_cast<T>(below(count));
  }

  void alter_selector(plan::Selector& s) {
    switch (below(8)) {
      case 0:
        s.block = one_of({1, 8, 16, 32});
        break;
      case 1:
        s.sink = one_of({0, 1, 4, 16, 33});
        break;
      case 2:
        s.local = one_of({0, 1, 7, 9, 16, 40});
        break;
      case 3:
        s.per = word<plan::SetPer>(3);
        break;
      case 4:
        s.counts_local = !s.counts_local;
        break;
      case 5:
        s.budget = {word<plan::BudgetRule>(4), one_of({0.1, 0.5, 0.9, 32.0, 96.0}), one_of({1, 48})};
        break;
      case 6:
        s.local_share = one_of({0.0, 0.25});
        break;
      default:
        if (!s.terms.empty()) alter_term(s.terms[static_cast<std::size_t>(below(static_cast<int>(s.terms.size())))]);
    }
  }
  void alter_term(plan::Term& term) {
    switch (below(6)) {
      case 0:
        term.source = word<plan::Source>(8);
        break;
      case 1:
        term.group = word<plan::GroupPooling>(6);
        break;
      case 2:
        term.heads = word<plan::HeadPooling>(4);
        break;
      case 3:
        term.budget = below(2) == 0 ? std::nullopt : std::optional(plan::Budget{plan::BudgetRule::tokens, 16});
        break;
      case 4:
        term.query_heads = below(2) == 0 ? std::vector<int>{} : std::vector<int>{below(6)};
        break;
      default:
        term.index.key_rank = one_of({0, 3, 64});
    }
  }
  void alter_role(plan::Plan& plan, plan::Role& role) {
    switch (below(7)) {
      case 0:
        role.kind = word<plan::RoleKind>(4);
        break;
      case 1:
        role.attends_set = !role.attends_set;
        break;
      case 2:
        role.reads = {below(5) - 1, below(3) - 1};
        break;
      case 3:
        role.selector = below(static_cast<int>(plan.selectors.size()) + 1) - 1;
        break;
      case 4:
        role.retention = below(static_cast<int>(plan.retentions.size()) + 1) - 1;
        break;
      default:
        role = plan.role(below(plan.shape.layers), below(plan.shape.kv_heads));
    }
  }
  void alter_once(plan::Plan& plan) {
    switch (below(8)) {
      case 0:
        plan.prefill.sparse = !plan.prefill.sparse;
        plan.prefill.tile_rows = plan.prefill.sparse ? 24 : 0;
        break;
      case 1:
        plan.combine[static_cast<std::size_t>(below(plan.shape.layers))] = word<plan::Combine>(2);
        break;
      case 2:
        plan.feedback = word<plan::Feedback>(2);
        break;
      case 3: {  // a layer as another one is
        const int from = below(plan.shape.layers), to = below(plan.shape.layers);
        for (int head = 0; head < plan.shape.kv_heads; ++head) plan.role(to, head) = plan.role(from, head);
        break;
      }
      case 4:
        if (plan.retentions.empty()) break;
        plan.retentions[0].rule = word<plan::RetentionRule>(6);
        break;
      case 5:
        if (!plan.selectors.empty())
          alter_selector(plan.selectors[static_cast<std::size_t>(below(static_cast<int>(plan.selectors.size())))]);
        break;
      case 6:
        plan.heat.per_layer = !plan.heat.per_layer;
        break;
      default:
        alter_role(plan, plan.role(below(plan.shape.layers), below(plan.shape.kv_heads)));
    }
  }

  std::mt19937 random_;
};

TEST(AlteredPlans, WhatIsAcceptedRuns) {
  Engine& shared = engine();
  const std::vector<Token> tokens = random_tokens(200, shared.tokenizer().size(), 9);
  std::vector<plan::Plan> seeds;
  for (const policies::Policy& policy : policies::registry()) {
    if (policy.name == "full") continue;
    policies::PolicyOptions options = budget("64");
    add_needed(std::string(policy.name), reference::test_model("llama"), options);
    seeds.push_back(make(shared, std::string(policy.name), options));
  }
  seeds.push_back(make(shared, "evosparse", budget("96", {{"heat", "layer"}})));
  seeds.push_back(union_plan());
  int ran = 0;
  for (std::uint32_t seed = 0; seed < (kSanitized ? 200u : 600u); ++seed) {
    plan::Plan plan = seeds[seed % seeds.size()];
    Mutator(seed).alter(plan);
    SCOPED_TRACE(seed);
    std::optional<Sequence> sequence;
    try {
      sequence.emplace(shared.open(plan));
    } catch (const UserError&) {
      continue;
    }
    ++ran;
    try {
      sequence->prefill(std::span(tokens).first(130));
      for (std::size_t i = 130; i < 134; ++i) {
        for (const float value : sequence->decode(tokens[i])) ASSERT_TRUE(std::isfinite(value)) << to_json(plan);
      }
      sequence->prefill(std::span(tokens).subspan(134, 40));
      for (const float value : sequence->decode(tokens[190])) ASSERT_TRUE(std::isfinite(value)) << to_json(plan);
    } catch (const std::exception& error) {
      FAIL() << error.what() << "\n" << to_json(plan);
    }
  }
  EXPECT_GT(ran, kSanitized ? 20 : 60);
}

}  // namespace
}  // namespace glimpse::engine
