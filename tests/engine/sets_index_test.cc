// Sets that come from an index over keys. Digests of pages are compared with brute force over the engine's keys; of
// clusters of several only what does not hang on how they were built: their search is checked beside the index itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
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
  double weight = 1;       ///< of the deviation
  std::string model = {};  ///< as RunOptions::model
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
  const Recording run = record_run(row.policy, budget(row.budget, row.extra), {.steps = kSteps, .model = row.model});
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
        const methods::Rows keys = run.keys_at(step, layer, head);
        std::vector<methods::Scores> queries;
        for (const methods::Row& query : record.queries) {
          queries.push_back(methods::page_scores(query, keys, row.page, {row.score, row.weight}));
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
        Case{.name = "quest_mean_and_twice_deviation",
             .policy = "quest",
             .budget = "96",
             .extra = {{"score", "meanstd"}, {"deviation-weight", "2"}},
             .score = methods::PageScore::mean_deviation,
             .weight = 2,
             .model = "llama"},
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
        methods::Scores looseness = methods::chunk_cohesion(prompt, kChunk);
        for (double& value : looseness) value = -value;
        methods::Set chunks(looseness.size());
        std::iota(chunks.begin(), chunks.end(), 0);
        std::vector<bool> read(static_cast<std::size_t>(step.position) + 1), held(looseness.size());
        for (const std::int32_t i : record.tokens) read.at(static_cast<std::size_t>(i)) = true;
        for (std::size_t c = 0; c < held.size(); ++c) held[c] = read[c * kChunk];
        for (const std::int32_t c : methods::best(looseness, chunks, kOutliers, held)) {
          ASSERT_TRUE(held[static_cast<std::size_t>(c)]) << "outlier " << c;
          std::erase(chunks, c);
        }
        const std::int64_t window = std::min(run.prompt, step.position + 1 - kLocal);
        for (std::int64_t i = window; i <= step.position; ++i) ASSERT_TRUE(read[static_cast<std::size_t>(i)]) << i;
        // The softmax is over all that may be chosen: neither outliers nor what the window touches.
        std::erase_if(chunks, [&](std::int32_t c) { return (c + 1) * kChunk > window; });
        const methods::Scores scores = methods::landmark_scores(record.queries, prompt, kChunk, chunks);
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

/// LycheeCluster with chunks of 16, where every chunk has a score of its own.
class ChunkSets : public testing::TestWithParam<Case> {
 protected:
  static constexpr std::int64_t kBudget = 128, kChunk = 16, kSink = 16, kBuffer = 64;  // half of the budget

  /// Calls `check` with a step, a layer and head that select, and how many tokens are in chunks.
  template <class Check>
  static void for_each_set(const Recording& run, const Check& check) {
    ASSERT_EQ(run.prompt % kChunk, 0) << "all chunks are whole";
    expect_own_sets(run);
    std::int64_t chunked = run.prompt;
    for (const StepRecord& step : run.steps) {
      while (step.position + 1 - chunked >= kBuffer) chunked += kChunk;
      for (int layer = 2; layer < run.plan.shape.layers; ++layer) {
        for (int head = 0; head < run.plan.shape.kv_heads; ++head) {
          SCOPED_TRACE(place(step, layer, head));
          check(step, run.at(step, layer, head), run.keys_at(step, layer, head), chunked);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  static std::int64_t room(const StepRecord& step, std::int64_t chunked) {
    return (kBudget - kSink - (step.position + 1 - chunked)) / kChunk;
  }
  /// Of chunks that are read; the first, which is the sink, counts as none.
  static std::vector<bool> held(const methods::Set& set, std::int64_t chunked) {
    std::vector<bool> chunks(static_cast<std::size_t>(chunked / kChunk));
    for (const std::int32_t i : set) {
      if (i >= kSink && i < chunked) chunks[static_cast<std::size_t>(i / kChunk)] = true;
    }
    return chunks;
  }
  static methods::Set candidates(std::int64_t chunked) {
    methods::Set chunks(static_cast<std::size_t>(chunked / kChunk - 1));
    std::iota(chunks.begin(), chunks.end(), 1);
    return chunks;
  }
};

// The buffer fills, and its oldest leave as a chunk.
TEST_P(ChunkSets, AreTheBestChunks) {
  constexpr int kDecoded = 96;
  const Case& row = GetParam();
  const Recording run = record_run(row.policy, budget(row.budget, row.extra),
                                   {.steps = kDecoded, .replayed = kDecoded, .model = row.model});
  std::int64_t last = 0;
  for_each_set(run, [&](const StepRecord& step, const HeadStep& record, methods::Rows keys, std::int64_t chunked) {
    const std::int64_t tokens = step.position + 1;
    keys.resize(static_cast<std::size_t>(chunked));
    std::vector<methods::Scores> queries;
    for (const methods::Row& query : record.queries) {
      queries.push_back(methods::page_scores(query, keys, kChunk, {row.score, row.weight}));
    }
    methods::Set expected = methods::sink_and_window(tokens, kSink, tokens - chunked);
    for (const std::int32_t c : methods::best(methods::maximum(queries), candidates(chunked), room(step, chunked),
                                              held(record.tokens, chunked))) {
      for (std::int32_t i = 0; i < kChunk; ++i) expected.push_back(c * static_cast<std::int32_t>(kChunk) + i);
    }
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(record.tokens, expected);
    last = chunked;
  });
  EXPECT_EQ(last, run.prompt + 3 * kChunk);
}

INSTANTIATE_TEST_SUITE_P(
    Sets, ChunkSets,
    testing::Values(Case{.name = "minmax",
                         .policy = "lychee-cluster",
                         .budget = "128",
                         .extra = {{"chunks", "fixed"}, {"score", "minmax"}},
                         .model = "llama"},
                    Case{.name = "meanstd",
                         .policy = "lychee-cluster",
                         .budget = "128",
                         .extra = {{"chunks", "fixed"}, {"score", "meanstd"}},
                         .score = methods::PageScore::mean_deviation,
                         .model = "llama"},
                    Case{.name = "meanstd_weighted",
                         .policy = "lychee-cluster",
                         .budget = "128",
                         .extra = {{"chunks", "fixed"}, {"score", "meanstd"}, {"deviation-weight", "2.5"}},
                         .score = methods::PageScore::mean_deviation,
                         .weight = 2.5,
                         .model = "llama"}),
    [](const auto& row) { return row.param.name; });

/// A cluster of one chunk is its representative, and the tree opens all of so short a text.
class SingleChunks : public ChunkSets {
 protected:
  /// Mean or maximum of each chunk's keys, of length 1.
  static methods::Rows representatives(const methods::Rows& keys, std::int64_t chunked) {
    methods::Rows rows;
    for (auto begin = keys.begin(); begin != keys.begin() + chunked; begin += kChunk) {
      const methods::Rows members(begin, begin + kChunk);
      methods::Row row = GetParam().extra.count("pooling") != 0 ? methods::maximum(members) : methods::mean(members);
      const double length = std::sqrt(methods::dot(row, row));
      for (double& x : row) x /= length;
      rows.push_back(std::move(row));
    }
    return rows;
  }
};

TEST_P(SingleChunks, AreThoseOfTheBestRepresentatives) {
  const Case& row = GetParam();
  const Recording run =
      record_run(row.policy, budget(row.budget, row.extra), {.steps = 40, .replayed = 96, .model = row.model});
  int compared = 0;
  const auto compare = [&](const StepRecord& step, const HeadStep& record, const methods::Rows& keys,
                           std::int64_t chunked) {
    ASSERT_EQ(chunked, run.prompt) << "a chunk of new tokens would join another";
    const methods::Scores scores = methods::maximum(methods::head_dots(record.queries, representatives(keys, chunked)));
    const std::vector<bool> taken = held(record.tokens, chunked);
    double least = 1e9, most = -1e9, longest = 0;
    for (const std::int32_t c : candidates(chunked)) {
      const auto at = static_cast<std::size_t>(c);
      if (taken[at]) least = std::min(least, scores[at]);
      if (!taken[at]) most = std::max(most, scores[at]);
    }
    for (const methods::Row& query : record.queries) longest = std::max(longest, methods::dot(query, query));
    // Centroids are kept in half floats.
    const double rounding = 2e-3 * std::sqrt(longest / static_cast<double>(run.plan.shape.head_dim));
    ASSERT_GT(least, most - rounding);
    ASSERT_EQ(std::count(taken.begin(), taken.end(), true), room(step, chunked));
    ++compared;
  };
  for_each_set(run, compare);
  EXPECT_EQ(compared, 40 * (run.plan.shape.layers - 2) * run.plan.shape.kv_heads);
}

INSTANTIATE_TEST_SUITE_P(
    Sets, SingleChunks,
    testing::Values(Case{.name = "mean",
                         .policy = "lychee-cluster",
                         .budget = "128",
                         .extra = {{"chunks", "fixed"}, {"chunks-per-cluster", "1"}},
                         .model = "llama"},
                    Case{.name = "largest",
                         .policy = "lychee-cluster",
                         .budget = "128",
                         .extra = {{"chunks", "fixed"}, {"chunks-per-cluster", "1"}, {"pooling", "max"}},
                         .model = "llama"}),
    [](const auto& row) { return row.param.name; });

TEST(ClusterOptions, MoreChunksInAClusterMakeASmallerIndex) {
  Engine& engine = shared_engine("llama");
  std::int64_t before = std::numeric_limits<std::int64_t>::max();
  for (const char* chunks : {"1", "2", "4", "8"}) {
    Sequence sequence = engine.open(make(engine, "lychee-cluster", budget("128", {{"chunks-per-cluster", chunks}})));
    sequence.prefill(passage(engine));
    EXPECT_LT(sequence.stats().index_memory, before) << chunks;
    before = sequence.stats().index_memory;
  }
  EXPECT_GT(before, 0);
}

class ClusterSets : public testing::TestWithParam<Case> {};

TEST_P(ClusterSets, HoldWhatTheyMustWithinTheBudget) {
  const Case& row = GetParam();
  const Recording run = record_run(row.policy, budget(row.budget, row.extra), {.steps = kSteps, .model = row.model});
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
                    Case{.name = "lychee_cluster_of_eight",
                         .policy = "lychee-cluster",
                         .budget = "128",
                         .extra = {{"chunks-per-cluster", "8"}},
                         .model = "llama"},
                    Case{"lychee_cluster_minmax", "lychee-cluster", "128", {{"score", "minmax"}}},
                    Case{"clusterkv", "clusterkv", "128"}),
    [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace glimpse::engine
