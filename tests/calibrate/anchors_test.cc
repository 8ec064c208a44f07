// The dynamic programmes against every set of anchors and of heads, and the head map against its definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>

#include "glimpse/calibrate/heads.h"

namespace glimpse::calibrate {
namespace {

/// The sum over layers of what each keeps through its nearest anchor, written out.
double sum_of(const std::vector<double>& table, int layers, unsigned anchors) {
  double sum = 0;
  for (int layer = 0; layer < layers; ++layer) {
    int anchor = layer;
    while ((anchors >> anchor & 1U) == 0) --anchor;
    sum += table[static_cast<std::size_t>(anchor * layers + layer)];
  }
  return sum;
}

TEST(Anchors, AreTheBestOfAllSets) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int layers = 1; layers <= 9; ++layers) {
    for (int round = 0; round < 8; ++round) {
      std::vector<double> table(static_cast<std::size_t>(layers * layers));
      for (double& value : table) value = uniform(random);
      for (int count = 1; count <= layers; ++count) {
        double best = -1;
        for (unsigned set = 1; set < 1U << layers; set += 2) {  // with layer 0
          if (std::popcount(set) == count) best = std::max(best, sum_of(table, layers, set));
        }
        const std::vector<int> anchors = best_anchors(table, layers, count);
        ASSERT_EQ(anchors.size(), static_cast<std::size_t>(count));
        ASSERT_EQ(anchors.front(), 0);
        ASSERT_TRUE(std::is_sorted(anchors.begin(), anchors.end()));
        unsigned set = 0;
        for (const int anchor : anchors) set |= 1U << anchor;
        ASSERT_EQ(std::popcount(set), count);
        EXPECT_NEAR(sum_of(table, layers, set), best, 1e-12) << layers << " layers, " << count;
        EXPECT_NEAR(total_gain(table, layers, anchors), best, 1e-12);
      }
    }
  }
}

TEST(Anchors, ObjectivesAreSharesOfAnAnchorInEveryLayer) {
  // [a, b]: what layer b keeps through layer a.
  const std::vector<double> table{1, 0.5, 0.25,  //
                                  0, 2,   0.5,   //
                                  0, 0,   1};
  const std::vector<double> found = objectives(table, 3, {{0}, {0, 1}, {0, 1, 2}});
  ASSERT_EQ(found.size(), 3u);
  EXPECT_DOUBLE_EQ(found[0], (1 + 0.5 + 0.25) / 4);
  EXPECT_DOUBLE_EQ(found[1], (1 + 2 + 0.5) / 4);
  EXPECT_DOUBLE_EQ(found[2], 1);
  EXPECT_EQ(objectives(std::vector<double>(9, 0), 3, {{0}}), std::vector<double>{1});
}

TEST(Anchors, HeadsReadTheHeadThatKeepsMost) {
  constexpr int kLayers = 6, kHeads = 3;
  std::mt19937 random(4);
  std::uniform_real_distribution<double> uniform(0, 1);
  Gains gains{kLayers, kHeads, std::vector<double>(kLayers * kLayers * kHeads * kHeads)};
  for (double& value : gains.gain) value = uniform(random);
  const auto raw = [&](int a, int b, int to, int from) {
    return gains.gain[static_cast<std::size_t>(((a * kLayers + b) * kHeads + to) * kHeads + from)];
  };
  const std::vector<int> anchors{0, 2, 5};
  const std::vector<int> map = head_map(gains, anchors);
  const std::vector<double> by_layer = gains.by_layer();
  for (int b = 0; b < kLayers; ++b) {
    const int anchor = b < 2 ? 0 : b < 5 ? 2 : 5;
    double sum = 0;
    for (int to = 0; to < kHeads; ++to) {
      const int from = map[static_cast<std::size_t>(b * kHeads + to)];
      if (anchor == b) {
        EXPECT_EQ(from, to);
      }
      for (int other = 0; other < kHeads && anchor != b; ++other) {
        EXPECT_GE(raw(anchor, b, to, from), raw(anchor, b, to, other));
      }
      sum += raw(anchor, b, to, from);
    }
    EXPECT_NEAR(by_layer[static_cast<std::size_t>(anchor * kLayers + b)], sum, 1e-12);
  }
}

TEST(Heads, AreTheBestOfAllSets) {
  constexpr int kLayers = 4, kHeads = 3, kFree = (kLayers - 1) * kHeads;
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int round = 0; round < 6; ++round) {
    Gains gains{kLayers, kHeads, std::vector<double>(kLayers * kLayers * kHeads * kHeads)};
    for (double& value : gains.gain) value = uniform(random);
    const auto sum_of_heads = [&](auto chooses) {
      double sum = 0;
      for (int head = 0; head < kHeads; ++head) {
        for (int layer = 0; layer < kLayers; ++layer) {
          int from = layer;
          while (from > 0 && !chooses(from, head)) --from;
          sum += gains.gain[static_cast<std::size_t>(((from * kLayers + layer) * kHeads + head) * kHeads + head)];
        }
      }
      return sum;
    };
    for (int count = 0; count <= kFree; ++count) {
      double best = -1;
      for (unsigned set = 0; set < 1U << kFree; ++set) {
        if (std::popcount(set) != count) continue;
        best = std::max(
            best, sum_of_heads([&](int layer, int head) { return (set >> ((layer - 1) * kHeads + head) & 1U) != 0; }));
      }
      const std::vector<char> heads = best_heads(gains, count);
      ASSERT_EQ(std::count(heads.begin(), heads.end(), 1), count + kHeads);
      for (int head = 0; head < kHeads; ++head) EXPECT_EQ(heads[static_cast<std::size_t>(head)], 1);
      EXPECT_NEAR(sum_of_heads(
                      [&](int layer, int head) { return heads[static_cast<std::size_t>(layer * kHeads + head)] != 0; }),
                  best, 1e-12)
          << count;
    }
  }
}

}  // namespace
}  // namespace glimpse::calibrate
