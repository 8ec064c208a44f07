// Who is asked more questions: against a plain search written anew here, and a race with loss rates that are known.
#include "glimpse/calibrate/race.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "glimpse/policies/choose_method.h"

namespace glimpse::calibrate {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kQuestions = 30, kFirst = 6, kBatch = 8;
constexpr std::array<double, kRaces> kDense{10, 30};

/// Asked the first questions, all kept; at the far length four times as slow.
Racer racer(double ms, double divergence = 0.01) {
  return {.ms = {ms, 4 * ms}, .asked = kFirst, .lost = 0, .divergence = divergence};
}

TEST(Race, AsksTheLeastDivergenceOfThoseThatAreAboutAsFast) {
  std::vector<Racer> racers{racer(6.0, 0.03), racer(6.5, 0.01), racer(6.7, 0.001), racer(5.0, 0.02)};
  EXPECT_EQ(next_racer(racers, kDense, kQuestions), 3U) << "the others are slower by far";
  racers[3].lost = 2;
  EXPECT_EQ(next_racer(racers, kDense, kQuestions), 1U) << "6.7 ms are more than 6 and a tenth";
  racers[1].lost = 1;
  EXPECT_EQ(next_racer(racers, kDense, kQuestions), 0U) << "one that lost none goes first";
  racers[0].lost = 1;
  EXPECT_EQ(next_racer(racers, kDense, kQuestions), 1U);
  racers[1].asked = kQuestions;
  EXPECT_EQ(next_racer(racers, kDense, kQuestions), std::nullopt) << "of equal losses the one that was asked all";
}

TEST(Race, EndsWithOneThatWasAskedAllAndLostNone) {
  std::vector<Racer> racers{racer(6.0, 0.03), racer(6.1, 0.01)};
  racers[0].asked = kQuestions;
  EXPECT_EQ(next_racer(racers, kDense, kQuestions), std::nullopt);
  racers[0].lost = policies::allowed_losses(kQuestions);
  ASSERT_GT(racers[0].lost, 0);
  EXPECT_EQ(next_racer(racers, kDense, kQuestions), 1U);
  racers[1] = racer(7);
  EXPECT_EQ(next_racer(racers, kDense, kQuestions), std::nullopt) << "what it may lose is lost, and the other is slow";
}

TEST(Race, LeavesOutWhatCannotBeTaken) {
  std::vector<Racer> racers{racer(6.0)};
  racers[0].refused = true;
  EXPECT_EQ(next_racer(racers, kDense, kQuestions), std::nullopt);
  racers[0] = racer(11);
  EXPECT_EQ(next_racer(racers, kDense, kQuestions), std::nullopt) << "slower than dense attention";
  racers[0].ms[1] = 29;
  EXPECT_EQ(next_racer(racers, kDense, kQuestions), 0U) << "but further out";
  racers[0].ms = {6, kNever};
  EXPECT_EQ(next_racer(racers, kDense, kQuestions), 0U);
  racers[0].lost = policies::allowed_losses(kQuestions) + 1;
  EXPECT_EQ(next_racer(racers, kDense, kQuestions), std::nullopt);
  EXPECT_EQ(next_racer({}, kDense, kQuestions), std::nullopt);
}

TEST(Race, OfEqualRowsTheFirstIsAsked) {
  const std::vector<Racer> racers(3, racer(6));
  EXPECT_EQ(next_racer(racers, kDense, kQuestions), 0U);
}

/// The rule once more, by sorting.
std::optional<std::size_t> plain_next(const std::vector<Racer>& racers, int questions) {
  for (std::size_t race = 0; race < kRaces; ++race) {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < racers.size(); ++i) {
      const Racer& each = racers[i];
      if (!each.refused && each.ms[race] < kDense[race] && each.lost <= questions / 25) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return racers[a].ms[race] < racers[b].ms[race]; });
    while (!order.empty() && racers[order.back()].ms[race] > racers[order.front()].ms[race] * policies::kCloseTimes) {
      order.pop_back();
    }
    std::sort(order.begin(), order.end());
    const auto by = [&](const auto& key) {
      std::stable_sort(order.begin(), order.end(),
                       [&](std::size_t a, std::size_t b) { return key(racers[a]) < key(racers[b]); });
    };
    by([&](const Racer& each) { return each.ms[race]; });
    by([](const Racer& each) { return each.divergence; });
    by([&](const Racer& each) { return each.asked < questions; });
    by([](const Racer& each) { return each.lost; });
    if (!order.empty() && racers[order.front()].asked < questions) return order.front();
  }
  return std::nullopt;
}

// Rows lose each question by a chance of their own; whoever the race asks has room, and in the end it is over.
TEST(Race, IsThePlainRuleAndComesToAnEnd) {
  std::mt19937_64 random(3);
  const auto uniform = [&](double most) { return std::uniform_real_distribution<double>(0, most)(random); };
  int asked_all = 0, rows = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<Racer> racers;
    std::vector<double> chance;
    for (int i = 0; i < 12; ++i) {
      racers.push_back(racer(5 + std::round(uniform(8)) / 2, std::round(uniform(4)) / 100));
      if (uniform(1) < 0.3) racers.back().ms[1] = kNever;
      chance.push_back(uniform(1) < 0.5 ? 0 : uniform(0.3));
      for (int k = 0; k < kFirst; ++k) racers.back().lost += uniform(1) < chance.back() ? 1 : 0;
    }
    int steps = 0;
    for (;;) {
      const auto next = next_racer(racers, kDense, kQuestions);
      ASSERT_EQ(next, plain_next(racers, kQuestions)) << round;
      if (!next) break;
      Racer& asked = racers[*next];
      ASSERT_LT(asked.asked, kQuestions);
      ASSERT_LE(asked.lost, policies::allowed_losses(kQuestions));
      const int more = std::min(kBatch, kQuestions - asked.asked);
      for (int k = 0; k < more; ++k) asked.lost += uniform(1) < chance[*next] ? 1 : 0;
      asked.asked += more;
      ASSERT_LT(++steps, 12 * 4);
    }
    for (const Racer& each : racers) asked_all += each.asked == kQuestions ? 1 : 0;
    rows += 12;
  }
  EXPECT_LT(asked_all, rows / 3) << "most rows are not asked all";
  EXPECT_GT(asked_all, 300);
}

}  // namespace
}  // namespace glimpse::calibrate
