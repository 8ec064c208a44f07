// How one token is drawn from the largest logits of a row, where that is known before the logits are: top-k, top-p,
// min-p, the temperature, in this order, and the number that decides. A value.
#pragma once

#include <cstdint>

namespace glimpse {

/// Of the top_k largest logits, the larger first: the least number of them whose softmax reaches top_p; of these, the
/// ones with at least min_p times the probability of the largest; of these by the softmax of logits over the
/// temperature the first at which the sum reaches `uniform` of the whole.
struct Draw {
  float temperature = 0;   ///< 0: the largest logit, and nothing else counts
  std::int32_t top_k = 0;  ///< 0: all that are there
  float top_p = 1;         ///< 1: off
  float min_p = 0;         ///< 0: off
  double uniform = 0;      ///< in [0, 1)
};

}  // namespace glimpse
