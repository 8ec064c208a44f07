// The token that a Draw takes, by its definition in double, and how near it is to another one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "glimpse/base/draw.h"

namespace glimpse::reference {

struct Drawn {
  std::int32_t token = -1;
  double nearest = 1;  ///< how far what was compared lay from its bound at the least, of 1: rounding decides near 0
};

/// Of tokens and their logits.
inline Drawn drawn(std::vector<std::pair<std::int32_t, float>> logits, const Draw& draw) {
  std::stable_sort(logits.begin(), logits.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  Drawn out{logits.front().first, 1};
  if (draw.temperature == 0) return out;
  if (draw.top_k > 0) logits.resize(std::min(logits.size(), static_cast<std::size_t>(draw.top_k)));
  const auto most = static_cast<double>(logits.front().second);
  const auto weights = [&](double temperature) {
    std::vector<double> made;
    double sum = 0;
    for (const auto& each : logits)
      sum += made.emplace_back(std::exp((static_cast<double>(each.second) - most) / temperature));
    for (double& each : made) each /= sum;
    return made;
  };
  const auto reached = [&](const std::vector<double>& parts, double bound) {
    double sum = 0;
    std::size_t i = 0;
    for (; i + 1 < parts.size(); ++i) {
      sum += parts[i];
      out.nearest = std::min(out.nearest, std::abs(sum - bound));
      if (sum >= bound) break;
    }
    return i;
  };
  if (draw.top_p < 1) logits.resize(reached(weights(1), static_cast<double>(draw.top_p)) + 1);
  if (draw.min_p > 0) {
    const double least = most + std::log(static_cast<double>(draw.min_p));
    for (const auto& each : logits)
      out.nearest = std::min(out.nearest, std::abs(static_cast<double>(each.second) - least));
    std::erase_if(logits, [&](const auto& each) { return static_cast<double>(each.second) < least; });
  }
  out.token = logits[reached(weights(static_cast<double>(draw.temperature)), draw.uniform)].first;
  return out;
}

}  // namespace glimpse::reference
