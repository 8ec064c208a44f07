// Sets that come from an index over keys. Digests of pages are compared with brute force over the engine's keys; of
// clusters only what does not hang on how they were built: their search is checked beside the index itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/engine/recording.h"

namespace glimpse::engine {
namespace {

constexpr int kSteps = 16;

struct Case {
  std::string name;
  std::string policy;
  std::string budget;
  std::map<std::string, std::string> extra = {};
  methods::PageScore score = methods::PageScore::min_max;
  std::int64_t page = 16;
};

void PrintTo(const Case& row, std::ostream* out) {
  *out << row.name;
}

methods::Set united(const std::vector<methods::Set>& sets) {
  methods::Set all;
  for (const methods::Set& set : sets) all.insert(all.end(), set.begin(), set.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

/// Layers 0 and 1 dense; every other selects for itself.
void expect_own_sets(const Recording& run) {
  std::vector<int> select;
  for (int layer = 2; layer < run.plan.shape.layers; ++layer) select.push_back(layer);
  expect_roles(run, {0, 1}, select);
}

class PageSets : public testing::TestWithParam<Case> {};

TEST_P(PageSets, AreTheBestPages) {
  const Case& row = GetParam();
  const Recording run = record_run(row.policy, budget(row.budget, row.extra));
  expect_own_sets(run);
  const bool per_query = row.extra.count("set") != 0;
  int compared = 0;
  for (const StepRecord& step : run.steps) {
    for (int layer = 2; layer < run.plan.shape.layers; ++layer) {
      for (int head = 0; head < run.plan.shape.kv_heads; ++head) {
        const HeadStep& record = run.at(step, layer, head);
        const plan::Selector& selector = selector_of(run, layer, head);
        ASSERT_EQ(selector.block, row.page);
        methods::Frame frame = frame_of(selector, step.position + 1);
        ASSERT_EQ(selector.budget.value, plan::parse_budget(row.budget).value);
        if (row.policy == "quest") frame.value = std::max(frame.value, 3.0 * 16);  // at least 3 pages
        const double weight = selector.terms.at(0).index.deviation_weight;
        const methods::Rows keys = run.keys_at(step, layer, head);
        std::vector<methods::Scores> queries;
        for (const methods::Row& query : record.queries) {
          queries.push_back(methods::page_scores(query, keys, row.page, {row.score, weight}));
        }
        if (per_query) {
          ASSERT_EQ(record.query_sets.size(), queries.size());
          for (std::size_t j = 0; j < queries.size(); ++j) {
            const methods::Set& set = record.query_sets[j];
            ASSERT_EQ(set, methods::choose_units(queries[j], step.position + 1, frame, set))
                << place(step, layer, head);
          }
          ASSERT_EQ(record.tokens, united(record.query_sets));
        } else {
          const methods::Set expected =
              methods::choose_units(methods::maximum(queries), step.position + 1, frame, record.tokens);
          ASSERT_EQ(record.tokens, expected) << place(step, layer, head);
        }
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, kSteps * (run.plan.shape.layers - 2) * run.plan.shape.kv_heads);
}

INSTANTIATE_TEST_SUITE_P(
    Sets, PageSets,
    testing::Values(
        Case{"quest", "quest", "96"}, Case{"quest_three_pages_at_least", "quest", "1%"},
        Case{"quest_per_query_head", "quest", "96", {{"set", "query-head"}}},
        Case{"quest_mean_and_deviation", "quest", "96", {{"score", "meanstd"}}, methods::PageScore::mean_deviation},
        Case{"arkvale_cuboid", "arkvale", "128", {}, methods::PageScore::min_max, 32},
        Case{"arkvale_sphere", "arkvale", "128", {{"digest", "sphere"}}, methods::PageScore::sphere, 32}),
    [](const auto& row) { return row.param.name; });

/// ShadowKV, whatever its budget counts: the chunks it took scored at least as well as those it left.
TEST(ShadowKvSets, AreTheBestLandmarks) {
  constexpr std::int64_t kChunk = 8, kLocal = 32;
  constexpr int kOutliers = 3;
  const Recording run = record_run("shadowkv", budget("128", {{"outliers", "3"}, {"rank", "0"}}));
  expect_own_sets(run);
  for (const StepRecord& step : run.steps) {
    for (int layer = 2; layer < run.plan.shape.layers; ++layer) {
      for (int head = 0; head < run.plan.shape.kv_heads; ++head) {
        SCOPED_TRACE(place(step, layer, head));
        const HeadStep& record = run.at(step, layer, head);
        const methods::Rows keys = run.keys_at(step, layer, head);
        const methods::Rows prompt(keys.begin(), keys.begin() + run.prompt / kChunk * kChunk);
        std::vector<methods::Scores> queries;
        for (const methods::Row& query : record.queries) {
          queries.push_back(methods::page_scores(query, prompt, kChunk, {methods::PageScore::landmark, 0}));
        }
        const methods::Scores scores = methods::maximum(queries);
        methods::Scores looseness = methods::chunk_cohesion(prompt, kChunk);
        for (double& value : looseness) value = -value;
        methods::Set chunks(scores.size());
        std::iota(chunks.begin(), chunks.end(), 0);
        std::vector<bool> read(static_cast<std::size_t>(step.position) + 1), held(scores.size());
        for (const std::int32_t i : record.tokens) read.at(static_cast<std::size_t>(i)) = true;
        for (std::size_t c = 0; c < held.size(); ++c) held[c] = read[c * kChunk];
        for (const std::int32_t c : methods::best(looseness, chunks, kOutliers, held)) {
          ASSERT_TRUE(held[static_cast<std::size_t>(c)]) << "outlier " << c;
          std::erase(chunks, c);
        }
        const std::int64_t window = std::min(run.prompt, step.position + 1 - kLocal);
        for (std::int64_t i = window; i <= step.position; ++i) ASSERT_TRUE(read[static_cast<std::size_t>(i)]) << i;
        std::erase_if(chunks, [&](std::int32_t c) { return (c + 1) * kChunk > run.prompt - kLocal; });
        std::int64_t taken = 0;
        for (const std::int32_t c : chunks) {
          taken += held[static_cast<std::size_t>(c)];
          for (std::int64_t i = c * kChunk; i < (c + 1) * kChunk; ++i) {
            ASSERT_EQ(read[static_cast<std::size_t>(i)], held[static_cast<std::size_t>(c)]) << "a chunk is whole";
          }
        }
        ASSERT_GT(taken, 0);
        for (const std::int32_t c : methods::best(scores, chunks, taken, held)) {
          ASSERT_TRUE(held[static_cast<std::size_t>(c)]) << "chunk " << c;
        }
      }
    }
  }
}

class ClusterSets : public testing::TestWithParam<Case> {};

TEST_P(ClusterSets, HoldWhatTheyMustWithinTheBudget) {
  const Case& row = GetParam();
  const Recording run = record_run(row.policy, budget(row.budget, row.extra));
  expect_own_sets(run);
  std::mt19937 random(5);
  double captured = 0, by_chance = 0;
  for (const StepRecord& step : run.steps) {
    for (int layer = 2; layer < run.plan.shape.layers; ++layer) {
      for (int head = 0; head < run.plan.shape.kv_heads; ++head) {
        SCOPED_TRACE(place(step, layer, head));
        const HeadStep& record = run.at(step, layer, head);
        const methods::Set& set = record.tokens;
        ASSERT_TRUE(std::is_sorted(set.begin(), set.end()));
        ASSERT_EQ(std::adjacent_find(set.begin(), set.end()), set.end());
        methods::Set must = methods::sink_and_window(step.position + 1, 16, step.position + 1 - run.prompt);
        ASSERT_TRUE(std::includes(set.begin(), set.end(), must.begin(), must.end()))
            << "16 sinks and every new token: they fit the buffer";
        const auto beside = selector_of(run, layer, head).counts_local ? 0 : step.position + 1 - run.prompt;
        const double most = plan::parse_budget(row.budget).value + static_cast<double>(beside);
        if (row.name != "lychee_cluster_whole") {
          ASSERT_LE(static_cast<double>(set.size()), most);
        }
        // At most one chunk or cluster short of it: there is always more to take.
        ASSERT_GT(static_cast<double>(set.size()), most - 16);
        const methods::Rows keys = run.keys_at(step, layer, head);
        const methods::Scores p = methods::mean(methods::head_probabilities(record.queries, keys));
        captured += methods::mass(p, set);
        methods::Set rest;
        for (std::int32_t i = 16; i < run.prompt; ++i) rest.push_back(i);
        std::shuffle(rest.begin(), rest.end(), random);
        rest.resize(set.size() - must.size());
        by_chance += methods::mass(p, must) + methods::mass(p, rest);
      }
    }
  }
  // A random model's keys have nothing in common with their neighbours, and a chunk's largest values tell nothing.
  if (row.name != "lychee_cluster_max" || run.plan.shape.layers > 8) {
    EXPECT_GT(captured, by_chance);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sets, ClusterSets,
    testing::Values(Case{"lychee_cluster", "lychee-cluster", "128"},
                    Case{"lychee_cluster_fixed", "lychee-cluster", "128", {{"chunks", "fixed"}}},
                    Case{"lychee_cluster_max", "lychee-cluster", "128", {{"pooling", "max"}}},
                    Case{"lychee_cluster_whole", "lychee-cluster", "128", {{"whole-clusters", "on"}}},
                    Case{"clusterkv", "clusterkv", "128"}),
    [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace glimpse::engine
