// The closed forms of the gates against numerical integration of their densities, draws against their distribution, and
// derivatives against differences.
#include "glimpse/train/gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "tests/support/refusal.h"

namespace glimpse::train {
namespace {

constexpr double kWidth = kStretchHigh - kStretchLow;
constexpr double kTemperature = 2.0 / 3;

const std::vector<Gate> kKumas{{0, 0}, {-1.2, 1.1}, {0.4, -0.9}, {0.3, 0.8}, {-0.7, -0.5}};
const std::vector<Gate> kConcretes{{0, 0}, {-3, 0}, {2.5, 0}, {0.4, 0}};

/// Of what is stretched, at a distance from 0 and from 1.
double density(GateKind kind, const Gate& gate, double x, double left) {
  if (kind == GateKind::hard_kuma) {
    const double alpha = std::exp(gate.a), beta = std::exp(gate.b);
    return alpha * beta * std::pow(x, alpha - 1) * std::pow(-std::expm1(alpha * std::log1p(-left)), beta - 1);
  }
  // Binary concrete: Maddison et al., 2017, with odds exp(a).
  const double odds = std::exp(gate.a), t = kTemperature;
  return t * odds * std::pow(x, -t - 1) * std::pow(left, -t - 1) /
         std::pow(odds * std::pow(x, -t) + std::pow(left, -t), 2);
}

/// By the midpoint rule; towards 0 and 1, where a density may have a pole, in powers of the distance.
using Function = std::function<double(double x, double left)>;
double integral(const Function& f, double low, double high) {
  constexpr int kParts = 200'000;
  constexpr double kPower = 6;
  const double half = 0.5;
  double sum = 0;
  const auto part = [&](double from, double to, bool from_end) {  // distances from 0, or from 1
    if (to <= from) return;
    const double a = std::pow(from, 1 / kPower), b = std::pow(to, 1 / kPower), step = (b - a) / kParts;
    for (int i = 0; i < kParts; ++i) {
      const double y = a + (i + 0.5) * step, distance = std::pow(y, kPower);
      sum +=
          (from_end ? f(1 - distance, distance) : f(distance, 1 - distance)) * kPower * std::pow(y, kPower - 1) * step;
    }
  };
  part(low, std::min(high, half), false);
  part(1 - high, 1 - std::max(low, half), true);
  return sum;
}

struct Case {
  GateKind kind;
  Gate gate;
};
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Gate& gate : kKumas) all.push_back({GateKind::hard_kuma, gate});
  for (const Gate& gate : kConcretes) all.push_back({GateKind::hard_concrete, gate});
  return all;
}

TEST(Gates, ChancesAndMeanAreTheIntegralsOfTheDensity) {
  for (const auto& [kind, gate] : cases()) {
    SCOPED_TRACE(std::string(name(kind)) + " " + std::to_string(gate.a) + " " + std::to_string(gate.b));
    const Function of = [kind = kind, gate = gate](double x, double left) { return density(kind, gate, x, left); };
    const double low = -kStretchLow / kWidth, high = (1 - kStretchLow) / kWidth;
    EXPECT_NEAR(shut_chance(kind, gate), integral(of, 0, low), 1e-4);
    EXPECT_NEAR(full_chance(kind, gate), integral(of, high, 1), 1e-4);
    EXPECT_NEAR(open_chance(kind, gate).value, 1 - integral(of, 0, low), 1e-4);
    const double inside =
        integral([&](double x, double left) { return (kStretchLow + kWidth * x) * of(x, left); }, low, high);
    EXPECT_NEAR(expected(kind, gate), inside + integral(of, high, 1), 1e-4);
  }
}

TEST(Gates, TheUniformDistributionOfTheStart) {
  const Gate gate = first_gate(GateKind::hard_kuma);
  EXPECT_NEAR(shut_chance(GateKind::hard_kuma, gate), 1.0 / 12, 1e-12);
  EXPECT_NEAR(full_chance(GateKind::hard_kuma, gate), 1.0 / 12, 1e-12);
  EXPECT_NEAR(expected(GateKind::hard_kuma, gate), 0.5, 1e-6);
}

TEST(Gates, DrawsFollowTheirDistribution) {
  constexpr int kDraws = 40'000, kBins = 20;
  for (const auto& [kind, gate] : cases()) {
    SCOPED_TRACE(std::string(name(kind)) + " " + std::to_string(gate.a) + " " + std::to_string(gate.b));
    std::mt19937_64 random(11);
    std::uniform_real_distribution<double> uniform(0, 1);
    std::vector<double> counts(kBins + 2);  // 0, the bins of (0, 1), 1
    for (int i = 0; i < kDraws; ++i) {
      const double z = sampled(kind, gate, uniform(random)).value;
      const std::size_t bin = z == 0 ? 0 : z == 1 ? kBins + 1 : 1 + static_cast<std::size_t>(z * kBins);
      counts[std::min<std::size_t>(bin, kBins + 1)] += 1;
    }
    double statistic = 0;
    int cells = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      double chance = 0;
      if (i == 0) {
        chance = shut_chance(kind, gate);
      } else if (i == kBins + 1) {
        chance = full_chance(kind, gate);
      } else {
        const double upper =
            i == kBins ? 1 - full_chance(kind, gate) : chance_at_most(kind, gate, static_cast<double>(i) / kBins);
        chance = upper - chance_at_most(kind, gate, static_cast<double>(i - 1) / kBins);
      }
      const double wanted = chance * kDraws;
      if (wanted < 5) continue;
      statistic += (counts[i] - wanted) * (counts[i] - wanted) / wanted;
      ++cells;
    }
    // Wilson and Hilferty's bound of chi-square at one in 100,000.
    const double freedom = cells - 1, ninth = 2 / (9 * freedom);
    EXPECT_LT(statistic, freedom * std::pow(1 - ninth + 4.265 * std::sqrt(ninth), 3));
  }
}

TEST(Gates, DerivativesAreDifferences) {
  constexpr double kStep = 1e-6;
  const auto expect_slope = [&](const std::function<Slope(const Gate&)>& of, const Gate& gate) {
    const Slope slope = of(gate);
    const auto by = [&](double a, double b) {
      return (of({gate.a + a, gate.b + b}).value - of({gate.a - a, gate.b - b}).value) / (2 * kStep);
    };
    EXPECT_NEAR(slope.by_a, by(kStep, 0), 1e-5 * (1 + std::abs(slope.by_a)));
    EXPECT_NEAR(slope.by_b, by(0, kStep), 1e-5 * (1 + std::abs(slope.by_b)));
  };
  for (const auto& [kind, gate] : cases()) {
    expect_slope([kind = kind](const Gate& at) { return open_chance(kind, at); }, gate);
    for (const double u : {0.03, 0.2, 0.41, 0.63, 0.88, 0.97}) {
      expect_slope([kind = kind, u](const Gate& at) { return sampled(kind, at, u); }, gate);
    }
  }
}

TEST(Gates, AClippedScalarIsItself) {
  EXPECT_EQ(sampled(GateKind::clipped, {0.3, 0}, 0.9).value, 0.3);
  EXPECT_EQ(expected(GateKind::clipped, {0.3, 0}), 0.3);
  EXPECT_EQ(first_gate(GateKind::clipped).a, 1);
  EXPECT_EQ(limited(GateKind::clipped, {-0.2, 0}).a, 0);
}

TEST(Gates, DrawsAtTheEndsAreFinite) {
  for (const auto& [kind, gate] : cases()) {
    for (const double u : {0.0, 1e-300, 1.0}) {
      const Slope slope = sampled(kind, gate, u);
      EXPECT_TRUE(std::isfinite(slope.value) && std::isfinite(slope.by_a) && std::isfinite(slope.by_b));
    }
  }
}

TEST(Gates, NamesAreKnown) {
  for (const GateKind kind : {GateKind::hard_kuma, GateKind::hard_concrete, GateKind::clipped}) {
    EXPECT_EQ(parse_gate(name(kind)), kind);
  }
  EXPECT_NE(refusal([] { parse_gate("hard-kumar"); }).find("did you mean 'hard-kuma'?"), std::string::npos);
}

}  // namespace
}  // namespace glimpse::train
