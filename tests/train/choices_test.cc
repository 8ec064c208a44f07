// Choices of retrieval heads: how many, which, and that layer 0 is always among them.
#include "glimpse/train/choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace glimpse::train {
namespace {

using testing::ElementsAre;

plan::ModelShape shape() {
  plan::ModelShape shape;
  shape.architecture = "llama";
  shape.layers = 5;
  shape.heads = 6;
  shape.kv_heads = 2;
  shape.head_dim = 8;
  return shape;
}

TEST(Choices, LayerZeroAlwaysRetrieves) {
  const std::vector<double> expected{0.1, 0.9, 0.6, 0.2, 0.3, 0.7, 0.0, 0.55};
  EXPECT_THAT(roles_of(shape(), expected).probability, ElementsAre(1, 1, 0.1, 0.9, 0.6, 0.2, 0.3, 0.7, 0.0, 0.55));
  EXPECT_EQ(retrieval_heads(shape(), roles_of(shape(), expected)), 4);
  EXPECT_THAT(strongest_roles(shape(), expected, 2).probability, ElementsAre(1, 1, 0, 1, 0, 0, 0, 1, 0, 0));
}

TEST(Choices, AsManyAsAreAskedFor) {
  const std::vector<double> scores(30, 0.5);
  std::set<std::vector<double>> drawn;
  for (int count = 0; count <= 8; ++count) {
    EXPECT_EQ(retrieval_heads(shape(), random_roles(shape(), count, 3)), count);
    EXPECT_EQ(retrieval_heads(shape(), even_roles(shape(), count)), count);
    EXPECT_EQ(retrieval_heads(shape(), scored_roles(shape(), count, scores)), count);
  }
  for (std::uint64_t seed = 0; seed < 10; ++seed) drawn.insert(random_roles(shape(), 3, seed).probability);
  EXPECT_GT(drawn.size(), 5U);
  EXPECT_EQ(random_roles(shape(), 3, 1), random_roles(shape(), 3, 1));
}

TEST(Choices, EvenOnesComeUpInEachIndex) {
  const std::vector<double> roles = even_roles(shape(), 4).probability;
  double first = 0, second = 0;
  for (std::size_t i = 2; i < roles.size(); i += 2) {
    first += roles[i];
    second += roles[i + 1];
  }
  EXPECT_EQ(first, 2);
  EXPECT_EQ(second, 2);
}

TEST(Choices, AHeadScoresAsItsBestQueryHead) {
  std::vector<double> scores(30);
  scores[6 * 0 + 0] = 1;  // layer 0 is not chosen from
  scores[6 * 2 + 4] = 0.8;
  scores[6 * 3 + 1] = 0.9;
  EXPECT_THAT(scored_roles(shape(), 2, scores).probability, ElementsAre(1, 1, 0, 0, 0, 1, 1, 0, 0, 0));
}

}  // namespace
}  // namespace glimpse::train
