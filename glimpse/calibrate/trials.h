// Prompts that dense attention has read and answered, and how well plans answer them: each plan decodes forks of the
// same prefill, fed dense attention's answer. Moves only; the engine outlives it; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "glimpse/calibrate/progress.h"
#include "glimpse/calibrate/prompts.h"
#include "glimpse/calibrate/recording.h"
#include "glimpse/engine/engine.h"

namespace glimpse::calibrate {

/// Tokens of an answer that plans are tried with: long copies are known by their beginning.
inline constexpr int kTried = 40;

struct Trial {
  std::string task;  ///< "single", "multikey", "vt", "passkey" or "prose"
  std::vector<Token> prompt;
  std::vector<std::string> wanted;         ///< none: prose, which has no right answer
  engine::Sequence dense;                  ///< the prompt alone
  std::vector<Token> answer;               ///< dense attention's, greedily; of prose how it goes on
  bool ended = false;                      ///< the answer came to its end before the limit
  std::vector<std::vector<float>> logits;  ///< [at most kTried][vocabulary] dense, before each token of the answer
  bool right = false;                      ///< the answer holds what is wanted
};

/// Of one plan on one trial.
struct Outcome {
  bool same = false;               ///< every token of the answer is dense attention's first choice
  bool right = false;              ///< the answer that the plan itself gives holds what is wanted; prose: same
  double agreement = 1;            ///< share of those tokens whose first choice is dense attention's
  double divergence = 0;           ///< KL(dense || plan) in nats, the mean over the answer's tokens behind the first
  std::optional<double> coverage;  ///< softmax mass of what heads read in the second step, the mean; when audited
};

/// A prompt that a plan with a sparse prefill has read, for the next trial that begins like it.
struct OwnPrefill {
  plan::Plan plan;
  engine::Sequence sequence;
};

struct TrialOptions {
  int limit = kTried;                        ///< tokens of an answer that are tried
  bool audit = false;                        ///< coverage too
  std::optional<OwnPrefill>* own = nullptr;  ///< kept between trials; none: each prompt is read anew
  Progress* progress = nullptr;              ///< told of each step
  bool to_difference = false;  ///< nothing behind the first token that is another: its divergence is not wanted
  bool alone = false;          ///< where tokens differ, let the plan's own answer go on; else `right` is `same`
};

/// Runs `prompt` on a fork of `start`, whose first `shared` tokens are the prompt's, and answers it densely with at
/// most `options.limit` tokens.
Trial make_trial(engine::Engine& engine, const engine::Sequence& start, std::int64_t shared,
                 const RetrievalPrompt& prompt, const TrialOptions& options);
/// The prose of `start` behind its first `at` tokens, `tokens` of it.
Trial prose_trial(engine::Engine& engine, const engine::Sequence& start, std::int64_t at, int tokens);

/// The prompt's part that the plan prefills itself is run; a plan with a sparse prefill runs all of it anew.
Outcome run_trial(engine::Engine& engine, const Trial& trial, const plan::Plan& plan, const TrialOptions& options);

/// The last `tail` tokens of the prompt and `limit` of the answer; where dense attention is wrong, what is wanted
/// instead of its answer.
Recording record_trial(const engine::Engine& engine, const Trial& trial, int tail, int limit);

/// How many tokens both begin with.
std::int64_t shared_tokens(std::span<const Token> a, std::span<const Token> b);

/// Tokens whose text overlaps one of `wanted`, anywhere in `tokens`; ascending.
std::vector<std::int32_t> positions_of(const text::Tokenizer& tokenizer, std::span<const Token> tokens,
                                       const std::vector<std::string>& wanted);

}  // namespace glimpse::calibrate
