// Sampling by libllama's sampler chain. Owns its state (penalty history, random state); copies by clone().
// One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "glimpse/text/tokenizer.h"

namespace glimpse::text {

struct SamplingOptions {
  float temperature = 0.0f;     ///< 0: greedy
  int top_k = 40;               ///< 0: off
  float top_p = 0.95f;          ///< 1: off
  float min_p = 0.05f;          ///< 0: off
  float repeat_penalty = 1.0f;  ///< 1: off
  int repeat_last_n = 64;       ///< tokens that penalties look back on; 0: none
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  std::uint32_t seed = 0;
};

/// Throws UserError for a value out of range (negative temperature, NaN, top_p over 1, ...).
void validate(const SamplingOptions& options);

struct TokenProbability {
  Token token = -1;
  float probability = 0;
};

class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);
  ~Sampler();
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;
  Sampler clone() const;

  /// The next token from [vocabulary] logits. Greedy with no penalties is arg-max, lower id first on ties.
  Token sample(std::span<const float> logits);
  /// What sample() would draw from: tokens of probability over 0, ascending ids, probabilities that sum to 1. One token
  /// when greedy.
  void distribution(std::span<const float> logits, std::vector<TokenProbability>& out);
  /// Tells the penalties of a token (prompt tokens, and each sampled one).
  void accept(Token token);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace glimpse::text
