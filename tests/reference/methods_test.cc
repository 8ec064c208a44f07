// The transcriptions on examples small enough to work out by hand: digests, heat, eviction, tiles.
#include "tests/reference/methods.h"

#include <gtest/gtest.h>

#include <cmath>

namespace glimpse::methods {
namespace {

constexpr double kTiny = 1e-12;

TEST(Pages, ScoreTheirDigests) {
  const Row query{2, -1, 0, 0};
  const Rows keys{{1, 0, 0, 0}, {3, 4, 0, 0}, {-1, 2, 0, 0}};
  // Page 0: x in [1, 3], y in [0, 4]: 2 * 3 + -1 * 0. Page 1, unfinished: its only key.
  const Scores bounds = page_scores(query, keys, 2, {PageScore::min_max, 0});
  EXPECT_NEAR(bounds.at(0), 6 / 2.0, kTiny);
  EXPECT_NEAR(bounds.at(1), -4 / 2.0, kTiny);
  // Centre (2, 2), both keys sqrt(1 + 4) away; |q| = sqrt(5).
  EXPECT_NEAR(page_scores(query, keys, 2, {PageScore::sphere, 0})[0], (2 + 5) / 2.0, kTiny);
  EXPECT_NEAR(page_scores(query, keys, 2, {PageScore::landmark, 0})[0], 2 / 2.0, kTiny);
  // Variances 1 and 4: sqrt(4 * 1 + 1 * 4).
  EXPECT_NEAR(page_scores(query, keys, 2, {PageScore::mean_deviation, 0.5})[0], (2 + 0.5 * std::sqrt(8)) / 2, kTiny);
}

TEST(Pages, BoundsHoldTheirKeys) {
  const Row query{0.3, -1.7, 0.9, 0.2};
  const Rows keys{{1, 0.5, -2, 0.1}, {-0.7, 1, 3, 1}, {0.2, -1, 0.4, -3}, {2, 2, -1, 0.6}};
  const Scores exact = dots(query, keys);
  for (const PageScore kind : {PageScore::min_max, PageScore::sphere}) {
    const Scores pages = page_scores(query, keys, 2, {kind, 0});
    for (std::size_t i = 0; i < keys.size(); ++i) EXPECT_GE(pages[i / 2] + kTiny, exact[i]);
  }
}

TEST(Pages, LandmarksScoreByEachHeadsSoftmax) {
  // Three chunks of one key. Head 0 has products 5, 4, 4 and probabilities 0.58, 0.21, 0.21; head 1 has products 0, 2,
  // 1 and probabilities 0.09, 0.67, 0.24.
  const Rows keys{{5, 0, 0, 0}, {4, 2, 0, 0}, {4, 1, 0, 0}};
  const Rows queries{{2, 0, 0, 0}, {0, 2, 0, 0}};
  const Scores scores = landmark_scores(queries, keys, 1, {0, 1, 2});
  EXPECT_NEAR(scores[0], std::log(std::exp(5) / (std::exp(5) + 2 * std::exp(4))), kTiny);
  EXPECT_NEAR(scores[1], std::log(std::exp(2) / (1 + std::exp(2) + std::exp(1))), kTiny);
  EXPECT_GT(scores[1], scores[0]) << "products would say chunk 0";
  // Without chunk 0, head 0 has nothing to tell between the others.
  const Scores rest = landmark_scores(queries, keys, 1, {1, 2});
  EXPECT_EQ(rest[0], -HUGE_VAL);
  EXPECT_NEAR(rest[2], std::log(0.5), kTiny);
}

TEST(Pages, CohesionIsTheWorstCosine) {
  const Scores least = chunk_cohesion({{1, 0}, {0, 1}, {2, 2}, {1, 1}, {5, 5}}, 2);
  ASSERT_EQ(least.size(), 2u);  // whole chunks only
  EXPECT_NEAR(least[0], std::sqrt(0.5), kTiny);
  EXPECT_NEAR(least[1], 1, kTiny);
}

/// 5 blocks of 2 tokens and an unfinished one: sink block 0, local the last token's block, 5.
EvoStep small_step(double budget) {
  EvoStep step;
  step.tokens = 11;
  step.frame = {Rule::count, budget, 2, 2, 1};
  step.heat = {9, 1, 2, 3};  // blocks 4 and 5 are cold
  return step;
}

TEST(Clusters, KMeansPlusPlusFindsEveryDirection) {
  // Eight directions, the first with 100 rows and the others with one or two.
  Rows rows;
  Set expected;
  for (int at = 0; at < 114; ++at) {
    const int topic = at < 100 ? 0 : 1 + (at - 100) / 2;
    Row row(8);
    row[static_cast<std::size_t>(topic)] = 1 + at % 3;
    row[static_cast<std::size_t>((topic + 1) % 8)] = 0.001 * (at % 5);
    rows.push_back(std::move(row));
    expected.push_back(topic);
  }
  const Set members = spherical_clusters(rows, 8, 1);
  for (std::size_t a = 0; a < rows.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b)
      EXPECT_EQ(members[a] == members[b], expected[a] == expected[b]) << a << " " << b;
  }
  EXPECT_GT(cluster_cohesion(rows, members), 0.999);
  EXPECT_LT(cluster_cohesion(rows, Set(rows.size(), 0)), 0.95);
}

TEST(EvoSparse, HeatFillsWhatSinkAndLocalLeave) {
  EXPECT_EQ(evosparse_set(small_step(8), {}), (Set{0, 1, 4, 5, 6, 7, 10}));
  EvoStep without = small_step(8);
  without.accumulates = false;
  EXPECT_EQ(evosparse_set(without, {}), (Set{0, 1, 10}));
}

TEST(EvoSparse, UnitesTheHeadsAndCutsByScore) {
  EvoStep step = small_step(8);
  step.blocks_per_head = 1;
  step.retrieval = {{0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0}};
  EXPECT_EQ(evosparse_propagated(step, {}), (Set{1, 4}));
  EXPECT_EQ(evosparse_set(step, {}), (Set{0, 1, 2, 3, 8, 9, 10}));
  step.frame.value = 6;  // room for one: the larger score
  EXPECT_EQ(evosparse_set(step, {}), (Set{0, 1, 8, 9, 10}));
  step.frame.value = 8;
  step.retrieval[1] = {7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};  // lies in the sink: costs nothing, heat takes its place
  EXPECT_EQ(evosparse_set(step, {}), (Set{0, 1, 2, 3, 6, 7, 10}));
}

TEST(EvoSparse, LocalBesideTheBudget) {
  EvoStep step = small_step(8);
  step.frame.counts_local = false;
  EXPECT_EQ(evosparse_set(step, {}), (Set{0, 1, 2, 3, 4, 5, 6, 7, 10}));
}

TEST(EvoSparse, LocalTokensInWholeBlocks) {
  EvoStep step = small_step(8);
  step.frame.local = 2;  // tokens 9 and 10: blocks 4 and 5
  EXPECT_EQ(evosparse_set(step, {}), (Set{0, 1, 6, 7, 8, 9, 10}));
}

TEST(EvoSparse, SettingsFollowTheBudget) {
  const auto at = [](std::int64_t budget) {
    const EvoSettings settings = evosparse_settings(budget);
    return std::pair(settings.local, settings.blocks);
  };
  using P = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(at(256), P(64, 5));
  EXPECT_EQ(at(1024), P(128, 7));
  EXPECT_EQ(at(3072), P(128, 13));  // 12.5
  EXPECT_EQ(at(9000), P(128, 15));
  EXPECT_EQ(at(768), P(96, 6));
  EXPECT_EQ(at(156), P(32, 3));  // 39 and 3.05
  EXPECT_EQ(at(20), P(0, 1));
}

TEST(EvoSparse, HeatDecaysAndTakesTheMeanOfItsReaders) {
  const std::vector<Reading> readings{{{0, 1, 4}, {0.2, 0.3, 0.5}}, {{4, 5}, {0.25, 0.75}}};
  // Block 0: one reader, 0.5; block 1: none; block 2: two readers, (0.5 + 1) / 2.
  const Scores after = heat_after({1, 2}, readings, 2, 0.5);
  ASSERT_EQ(after.size(), 3u);
  EXPECT_NEAR(after[0], 1.0, kTiny);
  EXPECT_NEAR(after[1], 1.0, kTiny);
  EXPECT_NEAR(after[2], 0.75, kTiny);
}

TEST(Evict, WindowsKeepSinkAndLast) {
  EXPECT_EQ(sink_and_window(10, 2, 3), (Set{0, 1, 7, 8, 9}));
  EXPECT_EQ(sink_and_window(4, 2, 3), (Set{0, 1, 2, 3}));
}

TEST(Evict, H2oKeepsRecentAndHeavy) {
  const Scores sums{5, 1, 9, 2, 0, 8, 0};
  EXPECT_EQ(keep_accumulated({0, 1, 2, 3, 4, 5, 6}, sums, {4, 2}, {}), (Set{0, 2, 5, 6}));
  EXPECT_EQ(keep_accumulated({1, 3, 4, 5, 6}, sums, {4, 2}, {}), (Set{1, 3, 5, 6}));
  EXPECT_EQ(keep_accumulated({1, 6}, sums, {4, 2}, {}), (Set{1, 6}));
}

TEST(Evict, TovaDropsTheLeastProbable) {
  EXPECT_EQ(keep_probable({0, 2, 3, 5, 6}, {0.4, 0, 0.1, 0.3, 0, 0.2, 0}, 4, {}), (Set{0, 3, 5, 6}));
}

TEST(Evict, RaasKeepsThePromptAndTheLastStamped) {
  // Prompt 0..2; of the generated 3..7 three stay: the current one and those stamped last.
  const Stamps stamps{3, 3, {0, 0, 0, 4, 1, 3, 2, 0}};
  EXPECT_EQ(keep_stamped({0, 1, 2, 3, 4, 5, 6, 7}, stamps, {}), (Set{0, 1, 2, 3, 5, 7}));
  EXPECT_EQ(keep_stamped({0, 1, 2, 4, 7}, stamps, {}), (Set{0, 1, 2, 4, 7}));
}

TEST(Evict, RaasStampsTheUpperHalf) {
  const UpperHalf even = upper_half({{1, 4, 6, 9}, {0.1, 0.4, 0.2, 0.3}});
  EXPECT_EQ(even.sure, (Set{4, 9}));
  EXPECT_EQ(even.open, Set{});
  const UpperHalf odd = upper_half({{1, 4, 6, 9, 10}, {0.1, 0.4, 0.2, 0.25, 0.05}});
  EXPECT_EQ(odd.sure, (Set{4, 9}));
  EXPECT_EQ(odd.open, (Set{6}));
  const UpperHalf tied = upper_half({{1, 4, 6, 9}, {0.1, 0.4, 0.25, 0.25}});
  EXPECT_EQ(tied.sure, (Set{4}));
  EXPECT_EQ(tied.open, (Set{6, 9}));
}

TEST(Evict, RazorsTokenStandsForTheDropped) {
  // Four equal keys: with one for the other two, the output is that of dense attention.
  const Rows keys(4, Row{1, 0, 0, 0});
  const Rows values{{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 4, 0}, {0, 0, 0, 4}};
  const Row out = compensated_attention({3, 1, 0, 0}, {&keys, &values}, {0, 1}, {2, 3});
  const Row expected{0.25, 0.25, 1, 1};
  for (std::size_t x = 0; x < 4; ++x) EXPECT_NEAR(out[x], expected[x], kTiny);
  EXPECT_NEAR(compensated_attention({3, 1, 0, 0}, {&keys, &values}, {0, 1}, {})[0], 0.5, kTiny);
}

TEST(Kascade, TilesPoolTheirRowsAfterSoftmax) {
  // Each query favours one key by a factor; the tile's own keys, 4 and 5, weigh 1 like all others.
  const auto favours = [](std::size_t key, double factor) {
    Row query(4);
    query[key] = 2 * std::log(factor);
    return query;
  };
  const Rows keys{{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}, Row(4), Row(4)};
  Tile tile;
  tile.start = 4;
  tile.fixed = 2;
  tile.queries = {{favours(0, 2), favours(2, 5)}, {favours(3, 3), favours(3, 3)}};
  // Row 0 sees 5 keys (sums 6 and 9), row 1 all 6 (sums 8): key 0 0.69, key 1 0.53, key 2 0.97, key 3 1.03.
  EXPECT_EQ(tile_set(tile, keys, {}), (Set{2, 3}));
  tile.fixed = 3;
  EXPECT_EQ(tile_set(tile, keys, {}), (Set{0, 2, 3}));
  tile.fixed = 4;
  EXPECT_EQ(tile_set(tile, keys, {}), (Set{0, 1, 2, 3})) << "within the budget: all before the tile";
  EXPECT_EQ(tile_budget({1000, {}, 0.1, 128, 0}), 128);
  EXPECT_EQ(tile_budget({1999, {}, 0.1, 128, 0}), 199);
  EXPECT_EQ(tile_budget({1999, {}, 0.1, 128, 64}), 64);
}

TEST(Kascade, TheTileItselfTakesProbabilityButIsNotChosen) {
  Tile tile;
  tile.start = 3;
  tile.fixed = 1;
  // Head 0 gives key 0 0.9 of what is left by its own token, head 1 gives key 2 0.4: the pooled winner depends on how
  // much the own token takes from head 0.
  const Rows keys{{1, 0, 0, 0}, {0, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}};
  tile.queries = {{{6, 0, 16, 0}, {0, 4, 0, 0}}};
  EXPECT_EQ(tile_set(tile, keys, {}), (Set{2}));  // a softmax without the tile would say {0}
  tile.queries[0][0][2] = 0;
  EXPECT_EQ(tile_set(tile, keys, {}), (Set{0}));
}

}  // namespace
}  // namespace glimpse::methods
