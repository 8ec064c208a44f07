// What calibration knows of a model before it decides: generated prompts, densely read and answered, and what attention
// did in their last tokens. Owns its sequences; the engine outlives it; one thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "glimpse/calibrate/measured.h"
#include "glimpse/calibrate/retrieval_scores.h"
#include "glimpse/calibrate/similarity.h"
#include "glimpse/calibrate/trials.h"

namespace glimpse::calibrate {

/// The set size at which similarity between layers is measured (Kascade, section 3.3).
inline constexpr int kSimilaritySet = 64;
/// Those of the table that says what methods keep.
inline constexpr std::array<std::string_view, 3> kTableBudgets{"512", "1024", "10%"};

/// From so many tokens on what is hidden leaves prose enough around it, and a prompt costs more than its questions.
inline constexpr std::int64_t kMixedFrom = 3600;

struct StudyOptions {
  std::int64_t length = 4096;  ///< tokens of the longest prompts
  std::string text;            ///< the user's own prose, before what is generated; may be empty
  std::uint64_t seed = 1;
  bool tables = true;  ///< false: prompts and answers alone; `importance`, `near`, `wide` and `retrieval` say nothing
  bool race = false;   ///< as many questions as a race asks (race.h)
  /// A race asks all kinds about one prompt of so many tokens or more, if it holds what they hide.
  std::int64_t mixed_from = kMixedFrom;
};

/// Questions of a kind whose trials have the logits of dense attention's answer: what plans are compared by. Of those
/// behind them a race asks dense attention only what somebody else does not answer (right_of).
inline constexpr int kCompared = 2;

struct Study {
  std::int64_t length = 0;         ///< of the longest prompts
  int budget = 0;                  ///< at which layers are decided
  std::vector<Trial> trials;       ///< those of a kind one behind the other
  std::vector<double> importance;  ///< [layers] mean of 1 - cosine(x, x + attention(x)) over the prompts
  Similarity near, wide;           ///< at kSimilaritySet tokens and at `budget`
  std::vector<double> retrieval;   ///< [layer, query head]
  Measured* measured = nullptr;    ///< where what plans give is looked up and kept; borrowed
  /// What plans that observe the ends of long prompts saw there.
  std::unique_ptr<evaluate::ObservedPrompts> observed = std::make_unique<evaluate::ObservedPrompts>();
};

/// The budget at which layers are decided in prompts of `length` tokens: an eighth of them, or the number of
/// kTableBudgets that is within a sixteenth of that, since what is then measured is the table's, too.
int study_budget(std::int64_t length);

/// The work of make_study in prompt tokens.
std::int64_t study_work(const StudyOptions& options);

/// The prompts alone; `on_recording`, where it is given, is called with what attention did in the last tokens of some.
/// As make_study otherwise.
std::vector<Trial> make_trials(engine::Engine& engine, const StudyOptions& options,
                               const std::function<void(const Recording&)>& on_recording, Progress& progress);

/// Sequences of `context` tokens (0: of many) that an engine needs room for: five prompts, and the ends of forks.
constexpr int study_sequences(std::int64_t context) {
  constexpr std::int64_t kForks = 400 * evaluate::kTogether;  // tokens: questions, answers, pages that they begin
  return 5 + (context > 0 ? static_cast<int>((kForks + context - 1) / context) : 1);
}
inline constexpr std::int64_t kAnswerRoom = 192;
/// Needs an engine of length + kAnswerRoom tokens with room for study_sequences() of them. Throws UserError for a model
/// without a chat template and a length that holds none of the tasks.
Study make_study(engine::Engine& engine, const StudyOptions& options, Progress& progress);

/// What a plan gave that was fed dense attention's answer to a trial. As evaluate::Outcome's; coverage 1: nothing was
/// left out.
struct Given {
  bool same = false;
  double divergence = 0, agreement = 1, coverage = 1;
};
/// Of each of the attempts, whose trials are answered. What is known from study.measured is not run again, and what is
/// not is kept there; so too by right_of.
std::vector<Given> given_of(engine::Engine& engine, const Study& study, std::span<const Attempt> attempts,
                            Progress& progress);

/// What of one question came out.
struct Answers {
  bool right = false;  ///< the attempt's plan's answer
  bool dense = false;  ///< dense attention's; true without a look where the plan's is right
};
/// Of each of the attempts the answer that the plan itself gives.
std::vector<Answers> right_of(engine::Engine& engine, const Study& study, std::span<const Attempt> attempts,
                              Progress& progress);

}  // namespace glimpse::calibrate
