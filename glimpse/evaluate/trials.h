// Prompts that dense attention has read and answered, and how well plans answer them: each plan decodes forks of the
// same prefill, fed dense attention's answer. Moves only; the engine outlives it; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "glimpse/engine/engine.h"
#include "glimpse/evaluate/logit_statistics.h"
#include "glimpse/evaluate/observed.h"
#include "glimpse/evaluate/progress.h"
#include "glimpse/evaluate/tasks/prompts.h"

namespace glimpse::evaluate {

using engine::Token;

/// Tokens of an answer that plans are tried with, where nothing else is said: long copies are known by their beginning.
inline constexpr int kTried = 40;

struct Trial {
  std::string task;  ///< its name, or "prose"
  std::vector<Token> prompt;
  std::vector<std::string> wanted;     ///< none: prose, which has no right answer
  engine::Sequence dense;              ///< the prompt alone
  std::vector<Token> answer;           ///< dense attention's, greedily; of prose how it goes on
  bool ended = false;                  ///< the answer came to its end before the limit
  std::vector<ComparedLogits> logits;  ///< [tried] dense, before each of the answer's first tokens
  bool answered = true;                ///< false: the answer is its first token alone, and nothing is said of it
  bool right = false;                  ///< the answer holds what is wanted
  Metric metric = Metric::words;
  double score = 0;  ///< of the answer, by `metric`
};

/// Of one plan on one trial.
struct Outcome {
  bool same = false;               ///< every token of the answer is dense attention's first choice
  bool right = false;              ///< the answer that the plan itself gives holds what is wanted; prose: same
  double agreement = 1;            ///< share of those tokens whose first choice is dense attention's
  double divergence = 0;           ///< KL(dense || plan) in nats, the mean over the answer's tokens behind the first
  std::optional<double> coverage;  ///< softmax mass of what heads read in the second step, the mean; when audited
  double score = 0;                ///< of the plan's own answer, by the trial's metric
  std::string answer;              ///< the plan's own, where `whole` was asked for
  engine::AttentionStats reads;    ///< of the steps that were fed dense attention's answer
  std::optional<double> step_s;    ///< median time of those behind the first, seconds; none where there was none
  std::int64_t cache_bytes = 0;    ///< of keys, values and indices behind the last of them, where `whole` was asked for
};

/// A prompt that a plan with a sparse prefill has read, for the next trial that begins like it.
struct OwnPrefill {
  plan::Plan plan;
  engine::Sequence sequence;
};

struct TrialOptions {
  int limit =
      kTried;  ///< tokens of an answer: of make_trial all, or 0: none is given; of run_trial those that are tried
  int tried = kTried;                        ///< of make_trial: tokens of which it keeps the logits
  bool audit = false;                        ///< coverage too
  std::optional<OwnPrefill>* own = nullptr;  ///< kept between trials; none: each prompt is read anew
  ObservedPrompts* observed = nullptr;       ///< so too; none: each plan observes for itself
  Progress* progress = nullptr;              ///< told of each step
  bool alone = false;        ///< where tokens differ, let the plan's own answer go on; else `right` is `same`
  std::optional<int> whole;  ///< the plan's own answer goes on to so many tokens, also where none that is tried differs
};

/// The tokens after a dense prefill. Throws Stopped.
engine::Sequence dense_prefill(engine::Engine& engine, std::span<const Token> tokens, Progress& progress);

/// Runs each prompt on a fork of `start`, which begins as they do, and answers it densely with at most `options.limit`
/// tokens; each token of all answers in one pass. Throws Stopped.
std::vector<Trial> make_trials(engine::Engine& engine, const engine::Sequence& start,
                               std::span<const RetrievalPrompt> prompts, const TrialOptions& options);
/// One alone.
Trial make_trial(engine::Engine& engine, const engine::Sequence& start, const RetrievalPrompt& prompt,
                 const TrialOptions& options);
/// The prose of `start` behind its first `at` tokens, `tokens` of it.
Trial prose_trial(engine::Engine& engine, const engine::Sequence& start, std::int64_t at, int tokens);

/// A plan on a trial; borrows both.
struct Attempt {
  const Trial* trial = nullptr;
  const plan::Plan* plan = nullptr;
};
/// Attempts that run_trials decodes together, at most. They need a sequence each, and one more where `alone` or `whole`
/// is asked for.
inline constexpr std::size_t kTogether = 16;

/// The outcome of each, in order. Of a trial that is not answered it is the plan's own answer alone, of `whole` tokens
/// at most: whether it is right, and its score. The prompt's part that a plan prefills itself is run; a plan with a
/// sparse prefill runs all of it anew. kTogether attempts take their tokens in one pass, so a step's time is that of
/// all; where one has ended the next begins. Throws Stopped.
std::vector<Outcome> run_trials(engine::Engine& engine, std::span<const Attempt> attempts, const TrialOptions& options);
/// One plan on each trial.
std::vector<Outcome> run_trials(engine::Engine& engine, std::span<const Trial> trials, const plan::Plan& plan,
                                const TrialOptions& options);
/// One alone.
Outcome run_trial(engine::Engine& engine, const Trial& trial, const plan::Plan& plan, const TrialOptions& options);

/// How many tokens both begin with.
std::int64_t shared_tokens(std::span<const Token> a, std::span<const Token> b);

}  // namespace glimpse::evaluate
