#include "glimpse/train/gate.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "glimpse/base/error.h"
#include "glimpse/base/suggest.h"

namespace glimpse::train {
namespace {

constexpr std::array<std::string_view, 3> kNames{"hard-kuma", "hard-concrete", "clipped"};
constexpr double kWidth = kStretchHigh - kStretchLow;
constexpr double kTemperature = 2.0 / 3;
constexpr double kLeast = 1e-12;  // of a draw's distance from 0 and 1

double stretched_back(double z) {
  return (z - kStretchLow) / kWidth;
}
double logistic(double x) {
  return 1 / (1 + std::exp(-x));
}
double logit(double x) {
  return std::log(x) - std::log1p(-x);
}

/// P(z > x) for x in [0, 1), with its slopes.
Slope chance_above(GateKind kind, const Gate& gate, double x) {
  const double s = stretched_back(x);
  if (kind == GateKind::hard_kuma) {
    // (1 - s^alpha)^beta
    const double alpha = std::exp(gate.a), beta = std::exp(gate.b);
    const double power = std::pow(s, alpha), rest = std::log1p(-power);
    const double chance = std::exp(beta * rest);
    return {chance, -chance * beta * power * std::log(s) * alpha / (1 - power), chance * beta * rest};
  }
  if (kind == GateKind::hard_concrete) {
    const double chance = logistic(gate.a - kTemperature * logit(s));
    return {chance, chance * (1 - chance), 0};
  }
  return {std::clamp(gate.a, 0.0, 1.0) > x ? 1.0 : 0.0, 0, 0};
}

}  // namespace

GateKind parse_gate(std::string_view text) {
  const auto found = std::find(kNames.begin(), kNames.end(), text);
  if (found == kNames.end()) throw UserError(unknown_name("gate", text, kNames));
  return static_cast<GateKind>(found - kNames.begin());
}

std::string_view name(GateKind kind) {
  return kNames[static_cast<std::size_t>(kind)];
}

Gate first_gate(GateKind kind) {
  return kind == GateKind::clipped ? Gate{1, 0} : Gate{0, 0};
}

Gate limited(GateKind kind, const Gate& gate) {
  switch (kind) {
    case GateKind::hard_kuma:
      return {std::clamp(gate.a, -1.8, 0.4), std::clamp(gate.b, -1.0, 1.8)};
    case GateKind::hard_concrete:
      return {std::clamp(gate.a, -8.0, 3.0), 0};
    case GateKind::clipped:
      break;
  }
  return {std::clamp(gate.a, 0.0, 1.0), 0};
}

Slope sampled(GateKind kind, const Gate& gate, double u) {
  u = std::clamp(u, kLeast, 1 - kLeast);
  Slope drawn;  // in (0, 1)
  if (kind == GateKind::hard_kuma) {
    // s = (1 - (1 - u)^(1 / beta))^(1 / alpha)
    const double alpha = std::exp(gate.a), beta = std::exp(gate.b);
    const double log_left = std::log1p(-u) / beta;
    const double w = std::max(-std::expm1(log_left), 1e-300);
    const double log_s = std::log(w) / alpha;
    const double s = std::exp(log_s);
    drawn = {s, -s * log_s, s / (alpha * w) * std::exp(log_left) * log_left};
  } else if (kind == GateKind::hard_concrete) {
    const double s = logistic((logit(u) + gate.a) / kTemperature);
    drawn = {s, s * (1 - s) / kTemperature, 0};
  } else {
    return {std::clamp(gate.a, 0.0, 1.0), 1, 0};  // clipped behind the step instead, or it could not come back
  }
  const double t = kStretchLow + kWidth * drawn.value;
  if (t <= 0) return {0, 0, 0};
  if (t >= 1) return {1, 0, 0};
  return {t, kWidth * drawn.by_a, kWidth * drawn.by_b};
}

Slope open_chance(GateKind kind, const Gate& gate) {
  if (kind == GateKind::clipped) return {std::clamp(gate.a, 0.0, 1.0), 1, 0};
  return chance_above(kind, gate, 0);
}

double chance_at_most(GateKind kind, const Gate& gate, double x) {
  return 1 - chance_above(kind, gate, x).value;
}

double shut_chance(GateKind kind, const Gate& gate) {
  return chance_at_most(kind, gate, 0);
}

double full_chance(GateKind kind, const Gate& gate) {
  if (kind == GateKind::clipped) return gate.a >= 1 ? 1 : 0;
  return chance_above(kind, gate, 1).value;
}

double expected(GateKind kind, const Gate& gate) {
  if (kind == GateKind::clipped) return std::clamp(gate.a, 0.0, 1.0);
  // E[z] is the integral of P(z > x) over [0, 1], which is smooth: Simpson's rule.
  constexpr int kParts = 256;
  double sum = 0;
  for (int i = 0; i <= kParts; ++i) {
    const double weight = i == 0 || i == kParts ? 1 : i % 2 == 1 ? 4 : 2;
    sum += weight * chance_above(kind, gate, static_cast<double>(i) / kParts).value;
  }
  return sum / (3 * kParts);
}

}  // namespace glimpse::train
