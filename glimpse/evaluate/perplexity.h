// Perplexity as llama.cpp's perplexity tool computes it, so that the numbers compare: the text in windows of `window`
// tokens, each from an empty cache and with the beginning-of-sequence token in its first place where the model wants
// one; the second half of each window is scored. The engine outlives the call; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "glimpse/engine/engine.h"

namespace glimpse::evaluate {

using engine::Token;

/// -log softmax(logits)[target], in double.
double token_nll(std::span<const float> logits, Token target);

/// Mean of negative log-likelihoods and its standard error.
class NllMean {
 public:
  void add(double nll);
  std::int64_t count() const { return count_; }
  double mean() const;
  double standard_error() const;  ///< of the mean; 0 below two values

 private:
  std::int64_t count_ = 0;
  double mean_ = 0, squares_ = 0;  ///< Welford: `squares_` sums squared deviations
};

struct PerplexityOptions {
  std::int64_t window = 2048;
  std::optional<std::int64_t> prefill;  ///< tokens of a window that are prefilled; none: all
  std::optional<std::int64_t> windows;  ///< none: all whole windows of the text
  /// Called after each scored token with those done and to do; false ends the run with what there is.
  std::function<bool(std::int64_t done, std::int64_t total)> on_progress;
  /// Asked before each chunk of a prefill; false ends the run as above.
  std::function<bool()> go_on;
};

struct PerplexityResult {
  double perplexity = 0;      ///< exp(mean negative log-likelihood)
  double standard_error = 0;  ///< of the perplexity, by the delta method
  std::int64_t tokens_scored = 0;
  std::int64_t windows = 0;
  engine::AttentionStats attention;  ///< of the decoded tokens of all windows
};

/// Throws UserError: a window below 4 tokens or over the context, fewer tokens than one window, a prefill over the
/// window.
PerplexityResult perplexity(engine::Engine& engine, const plan::Plan& plan, std::span<const Token> tokens,
                            const PerplexityOptions& options);

}  // namespace glimpse::evaluate
