// Numbers over rows of logits, all in double. Any thread.
#pragma once

#include <span>

#include "glimpse/text/tokenizer.h"

namespace glimpse::evaluate {

/// log of the sum of exp(logits).
double log_sum(std::span<const float> logits);

/// KL(p || q) in nats of the softmax distributions of two rows of logits [vocabulary]; 0 exactly for equal rows.
double divergence(std::span<const float> p, std::span<const float> q);

/// The lower id on ties.
text::Token arg_max(std::span<const float> logits);

}  // namespace glimpse::evaluate
