// How much of what a layer attends to lies in the sets that earlier layers chose (Kascade, section 3.2 to 3.5): over
// recorded steps, with the pooling over the group and the head map inside. Recordings are added one by one, layers in
// order; kept are the sets of one recording and one table. A value; one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/calibrate/recording.h"

namespace glimpse::calibrate {

class Similarity {
 public:
  /// Sets hold `budget` tokens, the step's own among them.
  Similarity(const plan::ModelShape& shape, int budget);

  void begin(const Recording& recording);
  /// Layers 0, 1, 2, ...; `attention` is pooled: [step, KV head, token]. The work is the team's, if there is one.
  void add_layer(int layer, const LayerAttention& attention, evaluate::ThreadTeam* team = nullptr);
  void end();

  /// Mass that head `to` of layer b puts on the set of head `from` of layer a <= b, over that on its own set: the least
  /// of a recording's steps, the mean over recordings. 1 for a head's own set.
  double similarity(int a, int b, int to, int from) const;
  /// [a, b]: the mean over the heads of b of what each has from the head of a that serves it best; 1 where a = b, 0
  /// where a > b.
  std::vector<double> by_layer() const;
  /// Of the mass that all heads put on needles in answers: the share that is head `to`'s of layer b and lies in the set
  /// of head `from` of layer a. 0 where no recording had a needle.
  double captured(int a, int b, int to, int from) const;
  /// The share of that mass that is head `to`'s of layer b.
  double needle_share(int b, int to) const;

  const plan::ModelShape& shape() const { return shape_; }
  int budget() const { return budget_; }

 private:
  std::size_t at(int a, int b, int to, int from) const;
  void best(std::span<const float> row, std::int64_t seen, std::vector<std::int32_t>& order) const;
  double needle_mass() const;

  plan::ModelShape shape_;
  int budget_;
  const Recording* recording_ = nullptr;
  std::vector<std::vector<std::vector<std::int32_t>>> sets_;  ///< [layer][step, KV head][budget] of this recording
  std::vector<double> least_, similarity_;                    ///< [a, b, to, from]
  std::vector<double> captured_, needle_;                     ///< [a, b, to, from], [b, to] sums over steps
  std::int64_t recordings_ = 0;
};

}  // namespace glimpse::calibrate
