#include "glimpse/text/logprobs.h"

#include <algorithm>
#include <cmath>

#include "glimpse/base/error.h"

namespace glimpse::text {

TokenLogprobs logprobs_of(std::span<const float> logits, Token token, int top) {
  check(token >= 0 && static_cast<std::size_t>(token) < logits.size(), "a token of the vocabulary");
  TokenLogprobs out;
  out.token = token;
  const auto most = std::min(static_cast<std::size_t>(top), logits.size());
  out.top.reserve(most + 1);
  float largest = logits[0];
  for (std::size_t i = 0; i < logits.size(); ++i) {
    largest = std::max(largest, logits[i]);
    if (most == 0 || (out.top.size() == most && logits[i] <= out.top.back().logprob)) continue;
    const auto behind = std::upper_bound(out.top.begin(), out.top.end(), logits[i],
                                         [](float value, const TokenLogprob& each) { return value > each.logprob; });
    out.top.insert(behind, {static_cast<Token>(i), logits[i]});
    if (out.top.size() > most) out.top.pop_back();
  }
  double sum = 0;
  for (const float logit : logits) sum += static_cast<double>(std::exp(logit - largest));
  const double all = static_cast<double>(largest) + std::log(sum);
  const auto logprob = [&](float logit) { return static_cast<float>(static_cast<double>(logit) - all); };
  out.logprob = logprob(logits[static_cast<std::size_t>(token)]);
  for (TokenLogprob& each : out.top) each.logprob = logprob(each.logprob);
  return out;
}

}  // namespace glimpse::text
