// Log-probabilities against their definition in double.
#include "glimpse/text/logprobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "glimpse/base/error.h"

namespace glimpse::text {
namespace {

TEST(Logprobs, AreTheLogarithmOfTheSoftmax) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 4);
  for (const int size : {1, 2, 19, 300, 5000}) {
    std::vector<float> logits(static_cast<std::size_t>(size));
    for (float& logit : logits) logit = std::round(8 * normal(random)) / 8;  // ties
    double sum = 0;
    const double largest = *std::max_element(logits.begin(), logits.end());
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
    const auto logprob = [&](Token token) {
      return static_cast<double>(logits[static_cast<std::size_t>(token)]) - largest - std::log(sum);
    };
    std::vector<Token> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](Token a, Token b) { return logprob(a) > logprob(b); });
    for (const int top : {0, 1, 5, kMostLogprobs}) {
      const auto token = static_cast<Token>(random() % logits.size());
      const TokenLogprobs got = logprobs_of(logits, token, top);
      EXPECT_EQ(got.token, token);
      EXPECT_NEAR(got.logprob, logprob(token), 1e-5);
      ASSERT_EQ(got.top.size(), std::min(logits.size(), static_cast<std::size_t>(top)));
      for (std::size_t i = 0; i < got.top.size(); ++i) {
        EXPECT_EQ(got.top[i].token, order[i]) << i;
        EXPECT_NEAR(got.top[i].logprob, logprob(order[i]), 1e-5);
      }
      const TokenLogprobs best = logprobs_of(logits, order[0], top);
      if (top > 0) {
        EXPECT_EQ(best.logprob, best.top[0].logprob) << "the very same number";
      }
    }
  }
}

TEST(Logprobs, OfLogitsFarApart) {
  const std::vector<float> logits{-3e38F, 3e38F, 0};
  const TokenLogprobs got = logprobs_of(logits, 1, 2);
  EXPECT_EQ(got.logprob, 0);
  EXPECT_EQ(got.top[1].token, 2);
  EXPECT_THROW(logprobs_of(logits, 3, 0), InternalError);
}

}  // namespace
}  // namespace glimpse::text
