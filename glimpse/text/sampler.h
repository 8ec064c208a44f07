// Sampling: biases, bans, penalties and a grammar, then libllama's sampler chain. Owns its history, its random
// numbers and its place in the grammar; copies by clone(). One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "glimpse/base/draw.h"
#include "glimpse/text/grammar.h"
#include "glimpse/text/sampling_options.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::text {

struct TokenProbability {
  Token token = -1;
  float probability = 0;
};

struct TokenLogit {
  Token token = -1;
  float logit = 0;
};

class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);
  ~Sampler();
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;
  Sampler clone() const;

  /// The next token from [vocabulary] logits. Greedy is arg-max, lower id first on ties. Throws UserError for logits
  /// without a finite maximum, RequestError where biases, bans and the grammar leave no token and where the grammar
  /// takes too much work.
  Token sample(std::span<const float> logits);
  /// How many of the largest logits decide the next token; 0: all of them do.
  int deciding() const;
  /// The same token by the deciding() largest logits alone, or more of them, by ascending ids.
  Token sample_largest(std::span<const TokenLogit> largest);
  /// How sample_largest() will draw when `more` other tokens have been drawn, for who cannot wait for its logits. Its
  /// own token is the one that counts: exponentials of another library may be off by their last bit.
  Draw next_draw(int more) const;
  /// What sample() would draw from: tokens of probability over 0, ascending ids, probabilities that sum to 1. One token
  /// when greedy.
  void distribution(std::span<const float> logits, std::vector<TokenProbability>& out);
  /// Tells of the prompt, before the first token of the answer.
  void accept_prompt(std::span<const Token> tokens);
  /// Tells of the answer's next token.
  void accept(Token token);
  /// None of these tokens is taken before so many of the answer were accepted.
  void ban(std::span<const Token> tokens, std::int64_t accepted);
  /// From now on tokens are those that the grammar allows; `ends`, where it may end, and never elsewhere. Throws
  /// UserError where it does not take what the prompt ends with.
  void constrain(const GrammarWish& wish, std::span<const Token> ends);
  /// The grammar allows nothing more.
  bool must_end() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace glimpse::text
