// How a token is drawn from logits. Values; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "glimpse/text/tokenizer.h"

namespace glimpse::text {

struct TokenBias {
  Token token = -1;
  float bias = 0;
};

/// In the order in which they apply: logit_bias, penalties, top_k, top_p, min_p, temperature.
struct SamplingOptions {
  float temperature = 0.0f;     ///< 0: greedy
  int top_k = 40;               ///< 0: off
  float top_p = 0.95f;          ///< 1: off
  float min_p = 0.05f;          ///< 0: off
  float repeat_penalty = 1.0f;  ///< 1: off
  int repeat_last_n = 64;       ///< tokens that penalties look back on; 0: none; -1: all
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  /// False: frequency and presence penalty count tokens of the answer alone, as OpenAI's do.
  bool penalise_prompt = true;
  std::uint32_t seed = 0;
  /// Added to the logits, those of one token all. Minus infinity: the token is never taken.
  std::vector<TokenBias> logit_bias;
};

/// Throws UserError for a value out of range (negative temperature, NaN, top_p over 1, ...).
void validate(const SamplingOptions& options);

}  // namespace glimpse::text
