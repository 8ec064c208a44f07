// Numbers over rows of logits [vocabulary], in double. Any thread.
#pragma once

#include <span>
#include <vector>

#include "glimpse/text/tokenizer.h"

namespace glimpse::evaluate {

/// log of the sum of exp(logits).
double log_sum(std::span<const float> logits);

/// KL(p || q) in nats of the softmax distributions of two rows of logits; 0 exactly for equal rows.
double divergence(std::span<const float> p, std::span<const float> q);

/// The lower id on ties.
text::Token arg_max(std::span<const float> logits);

/// A row of logits that others are compared with: what each comparison needs of it is worked out once.
class ComparedLogits {
 public:
  explicit ComparedLogits(std::span<const float> logits);

  const std::vector<float>& row() const { return logits_; }
  text::Token first_choice() const { return first_choice_; }
  /// As divergence() of both, to about 1e-7 of it.
  double divergence(std::span<const float> other) const;

 private:
  std::vector<float> logits_;
  std::vector<float> probability_;  ///< rounded: for every token of an answer there are as many
  double log_sum_;
  text::Token first_choice_;
};

}  // namespace glimpse::evaluate
