// Log-probabilities of tokens: under the model's own distribution, the softmax of its logits before any bias, penalty,
// temperature or filter. Values and a pure function; any thread.
#pragma once

#include <span>
#include <vector>

#include "glimpse/text/tokenizer.h"

namespace glimpse::text {

/// Of the likeliest tokens that may be asked for.
inline constexpr int kMostLogprobs = 20;

struct TokenLogprob {
  Token token = -1;
  float logprob = 0;  ///< natural logarithm
};

struct TokenLogprobs {
  Token token = -1;
  float logprob = 0;
  std::vector<TokenLogprob> top;  ///< the likeliest, of equal ones the lower id first
};

/// Of `token` under [vocabulary] logits, none of them NaN or infinite, and of the `top` likeliest.
TokenLogprobs logprobs_of(std::span<const float> logits, Token token, int top);

}  // namespace glimpse::text
