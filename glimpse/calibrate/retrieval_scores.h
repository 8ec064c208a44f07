// Retrieval score of each query head (Wu, Wang, Xiao, Peng, Fu, Retrieval Head Mechanistically Explains Long-Context
// Factuality, 2024, section 2): the share of needle tokens that are copied into the answer while the head's arg-max
// lies on them. A value; one thread.
#pragma once

#include <vector>

#include "glimpse/calibrate/recording.h"

namespace glimpse::calibrate {

class RetrievalScores {
 public:
  explicit RetrievalScores(const plan::ModelShape& shape);

  /// A recording without a needle counts for nothing.
  void begin(const Recording& recording);
  /// Each layer, in any order; [step, query head, token].
  void add_layer(int layer, const LayerAttention& attention);

  /// [layer, query head], 0 to 1: the mean over recordings of copied needle tokens over all that the answer copies.
  std::vector<double> scores() const;

 private:
  plan::ModelShape shape_;
  const Recording* recording_ = nullptr;
  std::vector<int> copying_;  ///< steps of this recording whose next token is one of the needle's
  std::vector<double> sums_;
  int recordings_ = 0;
};

}  // namespace glimpse::calibrate
