// The transcriptions on examples small enough to work out by hand: scores, pooling and choosing.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/reference/methods.h"

namespace glimpse::methods {
namespace {

TEST(Scores, AreScaledByTheRootOfTheDimension) {
  EXPECT_EQ(dots({1, 2, 3, 4}, {{1, 1, 1, 1}, {0, 0, 0, 2}}), (Scores{5, 4}));
  const Scores p = softmax({0, std::log(3.0)});
  EXPECT_NEAR(p[0], 0.25, 1e-15);
  EXPECT_NEAR(p[1], 0.75, 1e-15);
  EXPECT_NEAR(softmax({1000, 1000})[0], 0.5, 1e-15);
}

TEST(Scores, PoolBeforeAndAfterSoftmax) {
  const Rows queries{{2, 0, 0, 0}, {0, 4, 0, 0}};
  const Rows keys{{1, 1, 0, 0}, {3, 0, 0, 0}};
  EXPECT_EQ(mean_query_dots(queries, keys), (Scores{1.5, 1.5}));
  EXPECT_EQ(head_dots(queries, keys), (std::vector<Scores>{{1, 3}, {2, 0}}));
  EXPECT_EQ(mean({{1, 3}, {2, 0}}), (Scores{1.5, 1.5}));
  EXPECT_EQ(maximum({{1, 3}, {2, 0}}), (Scores{2, 3}));
  const double first = head_probabilities(queries, keys)[0][1];
  EXPECT_NEAR(first, 1 / (1 + std::exp(-2.0)), 1e-15);
  EXPECT_NEAR(mass({0.5, 0.25, 0.25}, {0, 2}), 0.75, 1e-15);
  EXPECT_NEAR(read_probabilities(queries[0], keys, {1})[0], 1, 1e-15);
}

TEST(Choose, CountsTheCurrentTokenAndSinkAndWindowInside) {
  const Scores scores{9, 1, 5, 7, 3, 2, 0};
  EXPECT_EQ(choose(scores, {Rule::count, 3}, {}), (Set{0, 3, 6}));
  EXPECT_EQ(choose(scores, {Rule::count, 1}, {}), (Set{6}));
  EXPECT_EQ(choose(scores, {Rule::count, 4, 1, 1, 2}, {}), (Set{0, 3, 5, 6}));
  EXPECT_EQ(choose(scores, {Rule::count, 4, 1, 1, 2, false}, {}), (Set{0, 2, 3, 4, 5, 6}));
  EXPECT_EQ(choose(scores, {Rule::count, 99}, {}), (Set{0, 1, 2, 3, 4, 5, 6}));
}

TEST(Choose, EqualScoresTakeTheLowerPosition) {
  EXPECT_EQ(choose({4, 4, 4, 4, 0}, {Rule::count, 3}, {}), (Set{0, 1, 4}));
}

TEST(Choose, WithinTheSlackTheGuideDecidesAndBeyondItNot) {
  const Scores near{1.0, 1.000001, 0.5, 0};
  EXPECT_EQ(choose(near, {Rule::count, 2}, {}), (Set{1, 3}));
  EXPECT_EQ(choose(near, {Rule::count, 2}, {0, 3}), (Set{0, 3}));
  EXPECT_EQ(choose(near, {Rule::count, 2}, {1, 3}), (Set{1, 3}));
  EXPECT_EQ(choose(near, {Rule::count, 2}, {2, 3}), choose(near, {Rule::count, 2}, {}));
  EXPECT_EQ(choose({1.0, 1.001, 0.5, 0}, {Rule::count, 2}, {0, 3}), (Set{1, 3}));
}

TEST(Choose, BlocksScoreTheirBestTokenAndTheUnfinishedOneCounts) {
  // Blocks of 2: {0,1} 9, {2,3} 7, {4,5} 8, {6} the current one.
  const Scores scores{9, 1, 5, 7, 8, 2, 0};
  EXPECT_EQ(choose(scores, {Rule::count, 4, 2}, {}), (Set{0, 1, 6}));
  EXPECT_EQ(choose(scores, {Rule::count, 7, 2}, {}), (Set{0, 1, 4, 5, 6}));
  EXPECT_EQ(choose(scores, {Rule::count, 6, 2, 0, 2}, {}), (Set{0, 1, 4, 5, 6}));  // the window touches two blocks
}

TEST(Choose, MassIsTheSmallestSetThatReachesIt) {
  const Scores p{0.1, 0.4, 0.05, 0.3, 0.15};
  EXPECT_EQ(choose(p, {Rule::mass, 0.69}, {}), (Set{1, 3, 4}));
  EXPECT_EQ(choose(p, {Rule::mass, 0.75}, {}), (Set{1, 3, 4}));
  EXPECT_EQ(choose(p, {Rule::mass, 0.9}, {}), (Set{0, 1, 3, 4}));
  EXPECT_EQ(choose(p, {Rule::mass, 0.7000001}, {1, 3, 4}), (Set{1, 3, 4}));
  EXPECT_EQ(choose(p, {Rule::mass, 0.5}, {}), (Set{1, 4}));  // the current token's 0.15 counts
  EXPECT_EQ(choose(p, {Rule::mass, 0.1}, {}), (Set{4}));
  EXPECT_EQ(choose(p, {Rule::mass, 0.69, 2}, {}), (Set{0, 1, 2, 3, 4}));  // blocks of 0.5, 0.35, 0.15
  EXPECT_EQ(choose(p, {Rule::mass, 0.6, 2}, {}), (Set{0, 1, 4}));
  EXPECT_EQ(choose(p, {Rule::mass, 0.6, 1, 1, 2}, {}), (Set{0, 1, 3, 4}));          // 0.1 and 0.45 are in
  EXPECT_EQ(choose(p, {Rule::mass, 0.45, 1, 1, 2, false}, {}), (Set{0, 1, 3, 4}));  // the window beside it: 0.1 + 0.4
}

TEST(Choose, ThresholdTakesWhatReachesIt) {
  const Scores p{0.1, 0.4, 0.05, 0.3, 0.15};
  EXPECT_EQ(choose(p, {Rule::threshold, 0.2}, {}), (Set{1, 3, 4}));
  EXPECT_EQ(choose(p, {Rule::threshold, 0.9}, {}), (Set{4}));
  EXPECT_EQ(choose(p, {Rule::threshold, 0.39, 2}, {}), (Set{0, 1, 4}));
  EXPECT_EQ(choose(p, {Rule::threshold, 0.32, 2}, {}), (Set{0, 1, 4}));  // 0.05 and 0.3 do not add up
}

TEST(Choose, SharesAreRoundedDown) {
  EXPECT_EQ(floor_share(0.29, 100), 29);
  EXPECT_EQ(floor_share(0.1, 309), 30);
  EXPECT_EQ(floor_share(1, 7), 7);
}

TEST(RankMerge, TakesOneOfEachHeadInTurn) {
  const std::vector<Scores> heads{{9, 8, 7, 6, 0, 0, 0, 0}, {0, 0, 7, 8, 9, 1, 0, 0}};
  // Window: the last one. Ranks: 0 4 | 1 3 | 2 2 | ...
  EXPECT_EQ(rank_merge(heads, {Rule::count, 4}, {}), (Set{0, 1, 4, 7}));
  EXPECT_EQ(rank_merge(heads, {Rule::count, 5}, {}), (Set{0, 1, 3, 4, 7}));
}

TEST(RankMerge, WhatIsInAnywayHasNoRank) {
  const std::vector<Scores> heads{{9, 8, 7, 6, 0, 0, 0, 0}, {0, 0, 7, 8, 9, 1, 0, 0}};
  // Sink 0 and the last two are in: the ranks of 1 to 5 are 1 4 | 2 3 | ...
  EXPECT_EQ(rank_merge(heads, {Rule::count, 4, 1, 1, 2}, {}), (Set{0, 1, 6, 7}));
  EXPECT_EQ(rank_merge(heads, {Rule::count, 5, 1, 1, 2}, {}), (Set{0, 1, 4, 6, 7}));
  EXPECT_EQ(rank_merge(heads, {Rule::count, 6, 1, 1, 2}, {}), (Set{0, 1, 2, 4, 6, 7}));
  // The first head's best is the sink: were it ranked, token 4 would come before token 1.
  EXPECT_EQ(rank_merge({heads[1], heads[0]}, {Rule::count, 4, 1, 1, 2}, {}), (Set{0, 4, 6, 7}));
  EXPECT_EQ(rank_merge({heads[0], heads[1]}, {Rule::count, 4, 1, 1, 2}, {}), (Set{0, 1, 6, 7}));
}

TEST(RankMerge, AQuarterRoundedUpIsRecentWithTheSinksInside) {
  EXPECT_EQ(quarter_window(64, 4), 12);
  EXPECT_EQ(quarter_window(65, 4), 13);
  EXPECT_EQ(quarter_window(67, 4), 13);
  EXPECT_EQ(quarter_window(68, 4), 13);
  EXPECT_EQ(quarter_window(8, 4), 1) << "the current token is always read";
}

}  // namespace
}  // namespace glimpse::methods
