// The quality of sets, against plain loops.
#include "glimpse/evaluate/set_quality.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace glimpse::evaluate {
namespace {

std::vector<float> random_floats(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(SetQuality, MassAndRecallFollowTheirFormulas) {
  constexpr int kDim = 8, kTokens = 50, kGroup = 3;
  const std::vector<float> keys = random_floats(kTokens * kDim, 3);
  HeadSets head{0, 0, {{0, 7, 13, 20, 49}, {1, 2, 3}, {48}}, random_floats(kGroup * kDim, 4)};
  double mass = 0, best_mass = 0, recall = 0;
  for (int g = 0; g < kGroup; ++g) {
    std::vector<std::pair<double, int>> sorted;
    double total = 0;
    for (int t = 0; t < kTokens; ++t) {
      double dot = 0;
      for (int i = 0; i < kDim; ++i) dot += static_cast<double>(head.query[g * kDim + i]) * keys[t * kDim + i];
      sorted.emplace_back(std::exp(dot / std::sqrt(8.0)), t);
      total += sorted.back().first;
    }
    const auto& set = head.sets[g];
    for (const std::int32_t t : set) mass += sorted[t].first / total;
    std::sort(sorted.rbegin(), sorted.rend());
    double found = 0;
    for (std::size_t i = 0; i < set.size(); ++i) {
      best_mass += sorted[i].first / total;
      found += std::count(set.begin(), set.end(), sorted[i].second);
    }
    recall += found / static_cast<double>(set.size());
  }
  const SetQuality sum = quality(head, keys, kDim);
  EXPECT_NEAR(sum.mass, mass, 1e-12);
  EXPECT_NEAR(sum.best_mass, best_mass, 1e-12);
  EXPECT_NEAR(sum.recall, recall, 1e-12);
  EXPECT_EQ(sum.tokens, 9);
  EXPECT_EQ(sum.count, 3);
  // One set for the whole group is the same set three times.
  HeadSets shared = head, three = head;
  shared.sets = {head.sets[0]};
  three.sets = {head.sets[0], head.sets[0], head.sets[0]};
  EXPECT_EQ(quality(shared, keys, kDim).mass, quality(three, keys, kDim).mass);
}

}  // namespace
}  // namespace glimpse::evaluate
