// Methods whose layers select for themselves: oracle and the indices (methods of section 7, LycheeCluster).
#include <gmock/gmock.h>

#include "method_plans.h"

namespace glimpse::policies {
namespace {

using plan::Budget;
using plan::BudgetRule;
using plan::GroupPooling;
using plan::Source;
using testing::HasSubstr;

TEST(Oracle, ExactTopOfEachQueryHeadInAllLayersButTheFirst) {
  const plan::Plan plan = make_plan("oracle", kLlama8B, {});
  expect_own_sets(plan, 1);
  plan::Selector expected;
  expected.per = plan::SetPer::query_head;
  expected.budget = {BudgetRule::tokens, 1024};
  expected.terms.push_back({Source::dot, GroupPooling::none});
  EXPECT_EQ(plan.selectors[0], expected);
  const plan::Plan mass = make_plan("oracle", kLlama8B, opts({{"set", "kv-head"}}, "p=0.9"));
  EXPECT_EQ(mass.selectors[0].terms[0], (plan::Term{Source::probability, GroupPooling::mean_probability}));
}

TEST(Quest, PagesOf16ByMinAndMax) {
  const plan::Plan plan = make_plan("quest", kLlama8B, {});
  expect_own_sets(plan, 2);
  plan::Selector expected;
  expected.block = 16;
  expected.budget = {BudgetRule::tokens, 1024};
  expected.terms.push_back({Source::page_bounds, GroupPooling::max_score});
  EXPECT_EQ(plan.selectors[0], expected);
}

TEST(Quest, NeverFewerThanThreePages) {
  EXPECT_THAT(refused("quest", kLlama8B, opts({}, "47")), HasSubstr("give --attn-budget 48 or more"));
  EXPECT_EQ(refused("quest", kLlama8B, opts({}, "48")), "");
  EXPECT_EQ(make_plan("quest", kLlama8B, opts({}, "10%")).selectors[0].budget, (Budget{BudgetRule::ratio, 0.1, 48}));
  PolicyOptions wide = opts({}, "10%");
  wide.block = 64;
  EXPECT_EQ(make_plan("quest", kLlama8B, wide).selectors[0].budget.at_least, 192);
  EXPECT_THAT(refused("quest", kLlama8B, opts({}, "p=0.9")), HasSubstr("knows no probabilities"));
}

TEST(Quest, Variants) {
  const plan::Selector query = make_plan("quest", kLlama8B, opts({{"set", "query-head"}})).selectors[0];
  EXPECT_EQ(query.per, plan::SetPer::query_head);
  EXPECT_EQ(query.terms[0].group, GroupPooling::none);
  const plan::Selector meanstd =
      make_plan("quest", kLlama8B, opts({{"score", "meanstd"}, {"deviation-weight", "0.5"}})).selectors[0];
  EXPECT_EQ(meanstd.terms[0].index.digest, plan::Digest::mean_deviation);
  EXPECT_EQ(meanstd.terms[0].index.deviation_weight, 0.5);
  EXPECT_THAT(refused("quest", kLlama8B, opts({{"deviation-weight", "0.5"}})), HasSubstr("mean-deviation"));
}

TEST(LycheeCluster, SinkBufferAndChunksInsideTheBudget) {
  const plan::Plan plan = make_plan("lychee-cluster", kQwen, {});
  expect_own_sets(plan, 2);
  plan::Selector expected;
  expected.sink = 16;
  expected.local = 128;
  expected.budget = {BudgetRule::tokens, 1024};
  expected.terms.push_back({Source::chunk_tree, GroupPooling::max_score});
  EXPECT_EQ(plan.selectors[0], expected);
  EXPECT_EQ(plan.selectors[0].terms[0].index.chunks_per_cluster, 2);
  EXPECT_EQ(refused("lychee-cluster", kQwen, opts({}, "64")), "") << "the buffer is at most half of it";
}

TEST(LycheeCluster, Ablations) {
  const auto index = [](std::map<std::string, std::string> extra) {
    return make_plan("lychee-cluster", kQwen, opts(std::move(extra))).selectors[0].terms[0].index;
  };
  EXPECT_EQ(index({{"chunks", "fixed"}}), (plan::IndexOptions{.fixed_chunks = true}));
  EXPECT_EQ(index({{"pooling", "max"}}), (plan::IndexOptions{.max_pooling = true}));
  EXPECT_EQ(index({{"whole-clusters", "on"}}), (plan::IndexOptions{.whole_clusters = true}));
  EXPECT_EQ(index({{"chunks-per-cluster", "8"}}), (plan::IndexOptions{.chunks_per_cluster = 8}));
  EXPECT_EQ(index({{"score", "minmax"}}), (plan::IndexOptions{.chunk_bounds = true}));
  EXPECT_EQ(index({{"score", "meanstd"}}),
            (plan::IndexOptions{.digest = plan::Digest::mean_deviation, .chunk_bounds = true}));
  EXPECT_THAT(refused("lychee-cluster", kQwen, opts({{"chunks-per-cluster", "9"}})), HasSubstr("1 to 8"));
  EXPECT_THAT(refused("lychee-cluster", kQwen, opts({{"score", "minmax"}, {"pooling", "max"}})),
              HasSubstr("max_pooling goes with chunk-tree without chunk_bounds"));
}

TEST(ClusterKv, ClustersOf80AndNewTokensBesideTheBudget) {
  const plan::Plan plan = make_plan("clusterkv", kLlama8B, {});
  expect_own_sets(plan, 2);
  plan::Selector expected;
  expected.sink = 16;
  expected.counts_local = false;
  expected.budget = {BudgetRule::tokens, 1024};
  expected.terms.push_back({Source::token_clusters, GroupPooling::max_score});
  EXPECT_EQ(plan.selectors[0], expected);
  EXPECT_EQ(plan.selectors[0].terms[0].index.tokens_per_cluster, 80);
  EXPECT_EQ(plan.selectors[0].terms[0].index.new_tokens, 320);
  EXPECT_THAT(refused("clusterkv", kLlama8B, opts({{"new-tokens", "10"}})), HasSubstr("new_tokens = 10"));
}

TEST(ArkVale, PagesOf32WithAHostTier) {
  const plan::Plan plan = make_plan("arkvale", kLlama8B, opts({}, "512"));
  expect_own_sets(plan, 2, 0);
  plan::Selector expected;
  expected.block = 32;
  expected.budget = {BudgetRule::tokens, 512};
  expected.terms.push_back({Source::page_bounds, GroupPooling::max_score});
  EXPECT_EQ(plan.selectors[0], expected);
  EXPECT_EQ(plan.retentions, std::vector<plan::Retention>{(plan::Retention{.rule = plan::RetentionRule::host_tier,
                                                                           .budget = {BudgetRule::tokens, 1024}})});
  EXPECT_EQ(make_plan("arkvale", kLlama8B, opts({{"digest", "sphere"}})).selectors[0].terms[0].index.digest,
            plan::Digest::sphere);
  EXPECT_EQ(make_plan("arkvale", kLlama8B, opts({{"resident", "600"}}, "512")).retentions[0].budget.value, 600);
  EXPECT_THAT(refused("arkvale", kLlama8B, opts({{"resident", "500"}}, "512")), HasSubstr("500 resident"));
  EXPECT_THAT(refused("arkvale", kLlama8B, opts({{"resident", "50%"}}, "512")), HasSubstr("both in tokens"));
  EXPECT_EQ(make_plan("arkvale", kLlama8B, opts({}, "60%")).retentions[0].budget, (Budget{BudgetRule::ratio, 1, 32}));
}

TEST(ShadowKv, LandmarksOfChunksOf8AndKeysOfRank160) {
  const plan::Plan plan = make_plan("shadowkv", kLlama8B, {});
  expect_own_sets(plan, 2);
  plan::Selector expected;
  expected.block = 8;
  expected.local = 32;
  expected.counts_local = false;
  expected.budget = {BudgetRule::tokens, 1024};
  expected.terms.push_back({Source::landmarks, GroupPooling::max_score});
  expected.terms[0].index = {.outlier_chunks = 48, .key_rank = 160};
  EXPECT_EQ(plan.selectors[0], expected);
  EXPECT_EQ(make_plan("shadowkv", kMha, {}).selectors[0].terms[0].index.key_rank, 128) << "at most G d";
  EXPECT_EQ(make_plan("shadowkv", kSmol, opts({{"rank", "0"}, {"outliers", "0"}})).selectors[0].terms[0].index,
            plan::IndexOptions{});
  EXPECT_THAT(refused("shadowkv", kMha, opts({{"rank", "129"}})), HasSubstr("0 to 128"));
}

TEST(Seer, BlocksOf64ByTheGatesOfAFile) {
  const plan::Plan plan = make_plan("seer", kQwen, opts({{"gates", "some/gates.gguf"}}));
  expect_own_sets(plan, 0);
  plan::Selector expected;
  expected.block = 64;
  expected.budget = {BudgetRule::tokens, 4096};
  expected.terms.push_back({Source::gate, GroupPooling::none});
  expected.terms[0].index.gates = "some/gates.gguf";
  EXPECT_EQ(plan.selectors[0], expected);
  EXPECT_THAT(to_json(plan), HasSubstr("some/gates.gguf"));
  EXPECT_THAT(explain(plan), HasSubstr("some/gates.gguf"));
  expect_own_sets(make_plan("seer", kQwen, opts({{"gates", "g"}, {"first-layer", "3"}})), 3);
  const plan::Plan threshold = make_plan("seer", kQwen, opts({{"gates", "g"}}, "tau=5e-4"));
  EXPECT_EQ(threshold.selectors[0].budget, (plan::Budget{BudgetRule::threshold, 5e-4}));
  EXPECT_FALSE(is_dense_at(threshold, 100)) << "a threshold covers nothing for sure";
}

TEST(Seer, SaysWhatItNeeds) {
  EXPECT_THAT(refused("seer", kQwen, {}),
              testing::AllOf(HasSubstr("seer"), HasSubstr("gate weights"), HasSubstr("gates=FILE")));
  EXPECT_THAT(refused("seer", kQwen, opts({{"gates", ""}})), HasSubstr("gates=FILE"));
  EXPECT_THAT(refused("seer", kQwen, opts({{"gates", "g"}}, "p=0.9")), HasSubstr("tau="));
  EXPECT_THAT(refused("seer", kQwen, opts({{"gates", "g"}}, "coverage=0.9")), HasSubstr("no probabilities of tokens"));
  EXPECT_THAT(refused("seer", kQwen, opts({{"gates", std::string(5000, 'g')}})), HasSubstr("no path"));
}

// Any selector runs inside another method's plan.
TEST(Composition, IndicesSelectForOtherMethods) {
  const struct {
    const char* name;
    Source source;
    int block, sink;
  } indices[] = {{"quest", Source::page_bounds, 16, 0},
                 {"lychee-cluster", Source::chunk_tree, 1, 16},
                 {"clusterkv", Source::token_clusters, 1, 16},
                 {"arkvale", Source::page_bounds, 32, 0}};
  const std::pair<const char*, const char*> hosts[] = {
      {"tidal", "selector"}, {"kascade", "anchor-selector"}, {"lychee-decode", "selector"}};
  for (const auto& index : indices) {
    for (const auto& [host, key] : hosts) {
      const plan::Plan plain = make_plan(host, kSmol, {});
      const plan::Plan composed = make_plan(host, kSmol, opts({{key, index.name}}));
      EXPECT_EQ(composed.roles, plain.roles) << host << " " << index.name;
      const plan::Selector& s = composed.selectors.at(0);
      EXPECT_EQ(s.terms.at(0).source, index.source);
      EXPECT_EQ(s.block, index.block);
      EXPECT_EQ(s.sink, index.sink);
      EXPECT_EQ(s.budget.rule, plain.selectors[0].budget.rule);
      EXPECT_EQ(s.budget.value, plain.selectors[0].budget.value);
      EXPECT_FALSE(composed.prefill.sparse);
      EXPECT_EQ(plan::from_json(plan::to_json(composed)), composed);
    }
  }
  EXPECT_THAT(refused("tidal", kSmol, opts({{"selector", "quest"}, {"set", "layer"}})),
              HasSubstr("belongs to a KV head"));
  EXPECT_EQ(make_plan("tidal", kSmol, opts({{"selector", "quest"}, {"set", "query-head"}})).selectors[0].per,
            plan::SetPer::query_head);
  EXPECT_THAT(refused("tidal", kSmol, opts({{"selector", "qest"}})), HasSubstr("did you mean 'quest'"));
  EXPECT_THAT(refused("kascade", kSmol, opts({{"anchor-selector", "quest"}, {"prefill", "sparse"}})),
              HasSubstr("give prefill=dense"));
}

}  // namespace
}  // namespace glimpse::policies
