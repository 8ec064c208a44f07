// Numbers over logits (glimpse/evaluate/logit_statistics.h), all in double. Any thread.
#pragma once

#include "glimpse/evaluate/logit_statistics.h"

namespace glimpse::bench {

using evaluate::arg_max;
using evaluate::divergence;
using evaluate::log_sum;

}  // namespace glimpse::bench
