// The least tokens whose exact choice captures a share of a KV head's softmax mass, over recorded steps: the current
// token, and the best of those before it by the mean probability of the group. Kept are a curve of each head and a
// count of each head and step, not the steps themselves. A value; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "glimpse/calibrate/recording.h"

namespace glimpse::calibrate {

class LeastTokens {
 public:
  /// Budgets come in grains of this many tokens, the smallest that all methods cut their sets in.
  static constexpr int kGrain = 16;

  /// `coverages`, in (0, 1) and ascending: the shares of the mass that `tokens` is asked for.
  LeastTokens(const plan::ModelShape& shape, std::vector<double> coverages);

  /// Every layer once for a recording; `attention` is pooled: [step, KV head, token], step 0 at position `first`.
  void add_layer(int layer, const LayerAttention& attention, std::int64_t first);

  const std::vector<double>& coverages() const { return coverages_; }
  /// [layer, KV head] tokens, whole grains, for coverages()[target]: so many that the mean of the steps captures it;
  /// with `steps`, in (0, 1], that this share of the steps do. A head without a step: one grain.
  std::vector<int> tokens(std::size_t target, const std::optional<double>& steps) const;
  /// The same with the least tokens in all for which the mean of steps and heads behind layer 0 captures it. A grain
  /// more captures the same everywhere, so heads of layer 0 have what that comes to. A model of two layers or more.
  std::vector<int> tokens_together(std::size_t target) const;

 private:
  struct Head {
    std::int64_t steps = 0;
    std::vector<double> mass;              ///< [grains - 1] sum over steps of what so many grains capture
    std::vector<std::vector<int>> counts;  ///< [coverage][step] grains
  };
  void add_step(Head& head, std::span<const float> row);
  int mean_grains(const Head& head, double coverage) const;
  double mean_mass(const Head& head, std::size_t grains) const;

  plan::ModelShape shape_;
  std::vector<double> coverages_;
  std::vector<Head> heads_;  ///< [layer, KV head]
  std::vector<float> sorted_;
};

}  // namespace glimpse::calibrate
