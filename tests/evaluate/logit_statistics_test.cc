#include "glimpse/evaluate/logit_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace glimpse::evaluate {
namespace {

std::vector<float> some_logits(std::uint64_t seed, double spread) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, spread);
  std::vector<float> logits(1000);
  for (float& logit : logits) logit = static_cast<float>(normal(random));
  return logits;
}

/// By the definition, sum of p log(p / q).
double defined(const std::vector<float>& p, const std::vector<float>& q) {
  double sum_p = 0, sum_q = 0, total = 0;
  for (const float logit : p) sum_p += std::exp(static_cast<double>(logit));
  for (const float logit : q) sum_q += std::exp(static_cast<double>(logit));
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double share_p = std::exp(static_cast<double>(p[i])) / sum_p;
    const double share_q = std::exp(static_cast<double>(q[i])) / sum_q;
    total += share_p * std::log(share_p / share_q);
  }
  return total;
}

TEST(ComparedLogits, DivergeByTheDefinition) {
  for (const double spread : {0.01, 1.0, 5.0}) {
    const std::vector<float> p = some_logits(1, spread), q = some_logits(2, spread);
    const double want = defined(p, q);
    EXPECT_NEAR(ComparedLogits(p).divergence(q), want, 1e-6 * want + 1e-12) << spread;
    EXPECT_EQ(ComparedLogits(p).divergence(p), 0);
  }
}

TEST(ComparedLogits, AShiftSaysNothing) {
  const std::vector<float> p = some_logits(1, 2);
  std::vector<float> q = some_logits(2, 2);
  const double before = ComparedLogits(p).divergence(q);
  for (float& logit : q) logit += 4096;  // exp() of it is out of range
  EXPECT_NEAR(ComparedLogits(p).divergence(q), before, 1e-3);
}

TEST(ComparedLogits, DivergeAlsoWhereLittleDiffers) {
  const std::vector<float> p = some_logits(1, 4);
  std::vector<float> q = p;
  const std::vector<float> noise = some_logits(2, 1e-3);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] += noise[i];
  EXPECT_NEAR(ComparedLogits(p).divergence(q), defined(p, q), 1e-11);
}

TEST(ComparedLogits, ATokenThatCannotComeAddsNothing) {
  std::vector<float> p = some_logits(1, 2), q = some_logits(2, 2);
  const double want = defined(p, q);
  for (const float never : {-1e3F, -1e30F}) {
    std::vector<float> more_p = p, more_q = q;
    more_p.push_back(never);
    more_q.insert(more_q.end(), 1, never);
    EXPECT_NEAR(ComparedLogits(more_p).divergence(more_q), want, 1e-6 * want) << never;
  }
}

TEST(ComparedLogits, ChooseTheLargestWhereverItStands) {
  std::vector<float> logits = some_logits(3, 1);
  for (const std::size_t at : {0, 63, 64, 500, 959, 960, 999}) {
    std::vector<float> one = logits;
    one[at] = 100;
    EXPECT_EQ(ComparedLogits(one).first_choice(), static_cast<text::Token>(at));
  }
  EXPECT_EQ(arg_max(std::vector<float>{-3, -1, -1}), 1);
}

TEST(ComparedLogits, ChooseTheLowerOfEquals) {
  EXPECT_EQ(ComparedLogits(std::vector<float>{1, 3, 2, 3}).first_choice(), 1);
}

}  // namespace
}  // namespace glimpse::evaluate
