// Kascade's anchors: the dynamic programme over a table of what each layer keeps when it reads an earlier one's sets,
// and the head map (Kascade, section 3.3, algorithm 1, and section 3.5). Pure functions and values; any thread.
#pragma once

#include <span>
#include <vector>

#include "glimpse/calibrate/similarity.h"

namespace glimpse::calibrate {

/// What head `to` of layer b keeps through the set of head `from` of layer a <= b.
struct Gains {
  int layers = 0, kv_heads = 0;
  std::vector<double> gain;  ///< [a, b, to, from]; a > b: 0

  double& at(int a, int b, int to, int from);
  double at(int a, int b, int to, int from) const;
  /// [a, b]: the sum over heads of the best head of a; a layer's own heads read their own sets.
  std::vector<double> by_layer() const;
};

struct GainOptions {
  double needles = 0;      ///< so many times the share of needle mass that is captured is added
  bool reads_all = false;  ///< heads that choose read everything (LycheeDecode), not their own set (Kascade)
};
/// The paper's: similarity times importance [layers], summed over the heads of b, over all importance; and what
/// `options` add.
Gains gains_of(const Similarity& similarity, const Similarity& capture, std::span<const double> importance,
               const GainOptions& options);

/// The `count` anchors, ascending, layer 0 first, whose sum of [a, b] over every layer b with its nearest anchor a <= b
/// is the largest. 1 <= count <= layers.
std::vector<int> best_anchors(std::span<const double> by_layer, int layers, int count);
/// That sum.
double total_gain(std::span<const double> by_layer, int layers, std::span<const int> anchors);
/// That sum for each set of anchors, over that of an anchor in every layer; 0 to 1, all 1 where that is nothing.
std::vector<double> objectives(std::span<const double> by_layer, int layers,
                               const std::vector<std::vector<int>>& anchors);

/// [layer, KV head]: head of the nearest earlier anchor that keeps most; an anchor's own row is 0, 1, 2, ...
std::vector<int> head_map(const Gains& gains, std::span<const int> anchors);

}  // namespace glimpse::calibrate
