// Methods whose layers select for themselves: oracle and the indices (methods of section 7, LycheeCluster).
#include <gmock/gmock.h>

#include "glimpse/policies/selectors.h"
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
  EXPECT_THAT(refused("clusterkv", kLlama8B, opts({{"new-tokens", "10"}})), HasSubstr("new-tokens=10"));
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
  expect_own_sets(plan, 2, 0);
  EXPECT_EQ(plan.retentions, std::vector<plan::Retention>{(plan::Retention{.rule = plan::RetentionRule::host_tier,
                                                                           .budget = {BudgetRule::tokens, 2048}})});
  EXPECT_TRUE(make_plan("shadowkv", kLlama8B, opts({{"resident", "all"}})).retentions.empty());
  EXPECT_THAT(refused("shadowkv", kLlama8B, opts({{"resident", "500"}})), HasSubstr("500 resident"));
  plan::Selector expected;
  expected.block = 8;
  expected.local = 32;
  expected.counts_local = false;
  expected.budget = {BudgetRule::tokens, 1024};
  expected.terms.push_back({Source::landmarks, GroupPooling::max_probability});
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
struct Host {
  const char* name;
  const char* key;
};
constexpr Host kHosts[] = {{"tidal", "selector"},
                           {"kascade", "anchor-selector"},
                           {"lychee-decode", "selector"},
                           {"omnikv", "selector"},
                           {"lessismore", "selector"}};

TEST(Composition, IndicesSelectForOtherMethods) {
  const struct {
    const char* name;
    Source source;
    int block, sink, local;
  } indices[] = {{"quest", Source::page_bounds, 16, 0, 0},
                 {"lychee-cluster", Source::chunk_tree, 1, 16, 128},
                 {"clusterkv", Source::token_clusters, 1, 16, 0},
                 {"arkvale", Source::page_bounds, 32, 0, 0},
                 {"shadowkv", Source::landmarks, 8, 0, 32}};
  for (const auto& index : indices) {
    for (const Host& host : kHosts) {
      const plan::Plan plain = make_plan(host.name, kSmol, {});
      const plan::Plan composed = make_plan(host.name, kSmol, opts({{host.key, index.name}}));
      ASSERT_EQ(letters(composed), letters(plain)) << host.name << " " << index.name;
      for (std::size_t i = 0; i < plain.roles.size(); ++i) {
        if (plain.roles[i].kind != plan::RoleKind::reuse) continue;
        EXPECT_EQ(composed.roles[i].reads.layer, plain.roles[i].reads.layer);
        EXPECT_EQ(composed.roles[i].reads.head, static_cast<int>(i) % kSmol.kv_heads) << "a set for each KV head";
      }
      const plan::Selector& s = composed.selectors.at(0);
      EXPECT_EQ(s.per, plan::SetPer::kv_head) << host.name;
      plan::Term term = make_plan(index.name, kSmol, {}).selectors[0].terms[0];
      term.index.key_rank = 0;  // how keys are read is not the selector's
      EXPECT_EQ(s.terms.at(0), term) << host.name << " " << index.name;
      EXPECT_EQ(s.terms.at(0).source, index.source);
      EXPECT_EQ(s.block, index.block);
      EXPECT_EQ(s.sink, index.sink);
      EXPECT_EQ(s.local, index.local);
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
  EXPECT_THAT(refused("omnikv", kSmol, opts({{"selector", "quest"}}, "p=0.9")), HasSubstr("quest's index"));
  EXPECT_THAT(refused("lessismore", kSmol, opts({{"selector", "quest"}, {"local-share", "0.5"}})),
              HasSubstr("selector=quest has a window of its own; set --attn-local"));
}

TEST(Composition, ASelectorTakesItsOwnOptions) {
  using plan::Digest;
  using plan::IndexOptions;
  const struct {
    const char* selector;
    std::map<std::string, std::string> options;
    IndexOptions index;
  } cases[] = {
      {"quest",
       {{"score", "meanstd"}, {"deviation-weight", "0.5"}},
       {.digest = Digest::mean_deviation, .deviation_weight = 0.5}},
      {"lychee-cluster", {{"chunks", "fixed"}, {"pooling", "max"}}, {.fixed_chunks = true, .max_pooling = true}},
      {"lychee-cluster",
       {{"whole-clusters", "on"}, {"chunks-per-cluster", "3"}},
       {.whole_clusters = true, .chunks_per_cluster = 3}},
      {"lychee-cluster", {{"score", "minmax"}}, {.chunk_bounds = true}},
      {"clusterkv",
       {{"tokens-per-cluster", "40"}, {"new-tokens", "160"}},
       {.tokens_per_cluster = 40, .new_tokens = 160}},
      {"arkvale", {{"digest", "sphere"}}, {.digest = Digest::sphere}},
      {"shadowkv", {{"outliers", "7"}}, {.outlier_chunks = 7}},
  };
  for (const Host& host : kHosts) {
    const std::string key = host.key;
    for (const auto& one : cases) {
      std::map<std::string, std::string> extra{{key, one.selector}};
      for (const auto& [option, value] : one.options) extra.emplace(key + "." + option, value);
      EXPECT_EQ(make_plan(host.name, kSmol, opts(extra)).selectors.at(0).terms.at(0).index, one.index)
          << host.name << " " << one.selector;
    }
    EXPECT_THAT(refused(host.name, kSmol, opts({{key, "quest"}, {key + ".digest", "sphere"}})),
                testing::AllOf(HasSubstr("--attn-opt " + key + ".digest=sphere of policy '" + host.name),
                               HasSubstr("unknown option of " + key + "=quest: 'digest'"),
                               HasSubstr("known: score, deviation-weight")));
    EXPECT_THAT(refused(host.name, kSmol, opts({{key + ".score", "meanstd"}})),
                HasSubstr(key + "=exact has no options; leave it out"));
    EXPECT_THAT(refused(host.name, kSmol, opts({{key, "shadowkv"}, {key + ".rank", "16"}})),
                HasSubstr("known: outliers"));
    EXPECT_THAT(refused(host.name, kSmol, opts({{key, "quest"}, {key + ".score", "mean"}})),
                HasSubstr("--attn-opt " + key + ".score=mean of policy '" + host.name + "': unknown word 'mean'"));
    EXPECT_THAT(refused(host.name, kSmol, opts({{key, "quest"}, {key + "s.score", "meanstd"}})),
                HasSubstr("unknown --attn-opt key"));
  }
  EXPECT_THAT(refused("quest", kSmol, opts({{"score.x", "1"}})), HasSubstr("unknown --attn-opt key"));
}

// Each option of each selector is the host's too, with the same default.
TEST(Composition, TablesAgree) {
  for (const Policy& policy : registry()) {
    for (const OptionHelp& row : policy.options) {
      EXPECT_EQ(row.selector, row.values == kSelectorValues) << policy.name;
      if (!row.selector) continue;
      const std::string key(row.key);
      for (const std::string_view name : kSelectorWords) {
        PolicyOptions plain = opts({{key, std::string(name)}});
        for (const OptionHelp& inner : selector_options(name)) {
          if (!inner.needed) continue;
          EXPECT_THAT(refused(policy.name, kSmol, plain), HasSubstr(key + "." + std::string(inner.key) + "=FILE"));
          plain.extra.emplace(key + "." + std::string(inner.key), "a file");
        }
        for (const OptionHelp& inner : selector_options(name)) {
          if (inner.needed) continue;
          PolicyOptions options = plain;
          options.extra.emplace(key + "." + std::string(inner.key), std::string(inner.default_value));
          EXPECT_EQ(make_plan(policy.name, kSmol, options), make_plan(policy.name, kSmol, plain)) << inner.key;
          options.extra[key + "." + std::string(inner.key)] = "wrong";
          EXPECT_NE(refused(policy.name, kSmol, options), "") << inner.key;
        }
      }
    }
  }
}

}  // namespace
}  // namespace glimpse::policies
