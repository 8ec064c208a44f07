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

}  // namespace glimpse::evaluate
