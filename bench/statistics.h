// Numbers over logits (glimpse/evaluate/logit_statistics.h) and over counts, all in double. Any thread.
#pragma once

#include <cstdint>

#include "glimpse/evaluate/logit_statistics.h"

namespace glimpse::bench {

using evaluate::arg_max;
using evaluate::divergence;
using evaluate::log_sum;

struct Interval {
  double low = 0, high = 1;
};
/// Wilson's 95 % interval of a share: `hits` of `count`; [0, 1] of none.
Interval wilson(std::int64_t hits, std::int64_t count);

}  // namespace glimpse::bench
