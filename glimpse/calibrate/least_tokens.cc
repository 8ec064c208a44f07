#include "glimpse/calibrate/least_tokens.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <utility>

#include "glimpse/base/error.h"

namespace glimpse::calibrate {
namespace {

/// Sums in another order compare.
constexpr double kRounding = 1e-9;

}  // namespace

LeastTokens::LeastTokens(const plan::ModelShape& shape, std::vector<double> coverages)
    : shape_(shape),
      coverages_(std::move(coverages)),
      heads_(static_cast<std::size_t>(shape.layers) * static_cast<std::size_t>(shape.kv_heads)) {
  check(std::is_sorted(coverages_.begin(), coverages_.end()), "ascending shares of the mass");
  for (const double coverage : coverages_) check(coverage > 0 && coverage < 1, "a share of the mass");
  for (Head& head : heads_) head.counts.resize(coverages_.size());
}

void LeastTokens::add_layer(int layer, const LayerAttention& attention, std::int64_t first) {
  check(attention.heads == shape_.kv_heads, "pooled probabilities");
  for (int step = 0; step < attention.steps; ++step) {
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const auto seen = static_cast<std::size_t>(first + step + 1);
      add_step(heads_[static_cast<std::size_t>(layer * shape_.kv_heads + head)], attention.row(step, head).first(seen));
    }
  }
}

void LeastTokens::add_step(Head& head, std::span<const float> row) {
  const std::size_t grains = (row.size() + kGrain - 1) / kGrain;
  if (head.mass.size() < grains) head.mass.resize(grains, static_cast<double>(head.steps));  // all of a shorter context
  sorted_.assign(row.begin(), row.end() - 1);
  std::sort(sorted_.begin(), sorted_.end(), std::greater<>());
  double all = static_cast<double>(row.back());
  for (const float probability : sorted_) all += static_cast<double>(probability);
  double sum = static_cast<double>(row.back());
  std::size_t target = 0, taken = 0;  // of those before the current token
  for (std::size_t grain = 0; grain < grains; ++grain) {
    const std::size_t until = std::min(sorted_.size(), (grain + 1) * kGrain - 1);
    for (; taken < until; ++taken) sum += static_cast<double>(sorted_[taken]);
    const double mass = grain + 1 == grains ? 1 : sum / all;
    head.mass[grain] += mass;
    for (; target < coverages_.size() && mass >= coverages_[target] - kRounding; ++target) {
      head.counts[target].push_back(static_cast<int>(grain + 1));
    }
  }
  for (std::size_t grain = grains; grain < head.mass.size(); ++grain) head.mass[grain] += 1;
  ++head.steps;
}

int LeastTokens::mean_grains(const Head& head, double coverage) const {
  const auto enough = std::find_if(head.mass.begin(), head.mass.end(), [&](double mass) {
    return mass / static_cast<double>(head.steps) >= coverage - kRounding;
  });
  check(enough != head.mass.end(), "all tokens hold all mass");
  return static_cast<int>(enough - head.mass.begin()) + 1;
}

double LeastTokens::mean_mass(const Head& head, std::size_t grains) const {
  return grains > head.mass.size() ? 1 : head.mass[grains - 1] / static_cast<double>(head.steps);
}

// What a grain more captures falls from grain to grain, in each step and so in their mean: the best next grain of all
// heads is one of the least set's, whatever comes after it.
std::vector<int> LeastTokens::tokens_together(std::size_t target) const {
  check(target < coverages_.size() && shape_.layers > 1, "a coverage that was counted, and a head behind layer 0");
  const auto first = static_cast<std::size_t>(shape_.kv_heads);
  std::vector<std::size_t> grains(heads_.size(), 1);
  const auto gain_of = [&](std::size_t head) {
    const Head& of = heads_[head];
    return of.steps == 0 ? 0.0 : mean_mass(of, grains[head] + 1) - mean_mass(of, grains[head]);
  };
  std::priority_queue<std::pair<double, std::size_t>> gains;
  double mass = 0, least = 1;
  for (std::size_t head = first; head < heads_.size(); ++head) {
    mass += heads_[head].steps == 0 ? 1 : mean_mass(heads_[head], 1);
    gains.push({gain_of(head), head});
  }
  const double wanted = coverages_[target] * static_cast<double>(heads_.size() - first) - kRounding;
  while (mass < wanted && gains.top().first > 0) {
    const auto [gain, head] = gains.top();
    gains.pop();
    mass += gain;
    least = gain;
    ++grains[head];
    gains.push({gain_of(head), head});
  }
  for (std::size_t head = 0; head < first; ++head) {
    while (gain_of(head) >= least) ++grains[head];
  }
  std::vector<int> tokens;
  for (const std::size_t count : grains) tokens.push_back(static_cast<int>(count) * kGrain);
  return tokens;
}

std::vector<int> LeastTokens::tokens(std::size_t target, const std::optional<double>& steps) const {
  check(target < coverages_.size() && (!steps || (*steps > 0 && *steps <= 1)), "a coverage that was counted");
  std::vector<int> tokens;
  for (const Head& head : heads_) {
    int grains = 1;
    if (head.steps > 0 && !steps) {
      grains = mean_grains(head, coverages_[target]);
    } else if (head.steps > 0) {
      std::vector<int> counts = head.counts[target];
      const double share = std::ceil(*steps * static_cast<double>(counts.size()) - kRounding);
      const auto at = counts.begin() + std::max<std::ptrdiff_t>(1, static_cast<std::ptrdiff_t>(share)) - 1;
      std::nth_element(counts.begin(), at, counts.end());
      grains = *at;
    }
    tokens.push_back(grains * kGrain);
  }
  return tokens;
}

}  // namespace glimpse::calibrate
