#include "glimpse/evaluate/logit_statistics.h"

#include <algorithm>
#include <cmath>

#include "glimpse/base/error.h"

namespace glimpse::evaluate {

double log_sum(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return top + std::log(sum);
}

double divergence(std::span<const float> p, std::span<const float> q) {
  check(p.size() == q.size(), "two distributions over one vocabulary");
  const double sum_p = log_sum(p), sum_q = log_sum(q);
  double total = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - sum_p;
    total += std::exp(log_p) * (log_p - (q[i] - sum_q));
  }
  return total;
}

text::Token arg_max(std::span<const float> logits) {
  return static_cast<text::Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

ComparedLogits::ComparedLogits(std::span<const float> logits)
    : logits_(logits.begin(), logits.end()), log_sum_(log_sum(logits)), first_choice_(arg_max(logits)) {
  probability_.reserve(logits.size());
  for (const float logit : logits) probability_.push_back(static_cast<float>(std::exp(logit - log_sum_)));
}

double ComparedLogits::divergence(std::span<const float> other) const {
  check(other.size() == logits_.size(), "two distributions over one vocabulary");
  double mean = 0;  // of how far logits lie apart
  for (std::size_t i = 0; i < logits_.size(); ++i) {
    mean += static_cast<double>(probability_[i]) * (static_cast<double>(logits_[i]) - static_cast<double>(other[i]));
  }
  return mean + log_sum(other) - log_sum_;
}

}  // namespace glimpse::evaluate
