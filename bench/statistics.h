// Numbers over logits and over counts, all in double. Any thread.
#pragma once

#include <cstdint>
#include <span>

#include "glimpse/text/tokenizer.h"

namespace glimpse::bench {

/// log of the sum of exp(logits).
double log_sum(std::span<const float> logits);

/// KL(p || q) in nats of the softmax distributions of two rows of logits [vocabulary]; 0 exactly for equal rows.
double divergence(std::span<const float> p, std::span<const float> q);

/// The lower id on ties.
text::Token arg_max(std::span<const float> logits);

struct Interval {
  double low = 0, high = 1;
};
/// Wilson's 95 % interval of a share: `hits` of `count`; [0, 1] of none.
Interval wilson(std::int64_t hits, std::int64_t count);

}  // namespace glimpse::bench
