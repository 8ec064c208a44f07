// Which method a profile speaks for (--attn auto): the cheapest in measured time among those that kept the quality, or
// the best draft for lossless decoding (docs/calibration.md). Pure functions and values: no clock, no tensor; any
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/plan/profile.h"

namespace glimpse::policies {

/// What a method must have kept of dense attention.
struct Quality {
  std::optional<double> divergence;  ///< mean KL to dense at most, nats; none: the answers of every kind of task
};
/// "answers" or "kl=0.05". Throws UserError.
Quality parse_quality(std::string_view text);

/// Answers that a method may lose of so many, beside dense attention, and keep them.
constexpr int allowed_losses(int questions) {
  return questions / 25;
}
/// Where dense attention itself does not answer a kind of task, so much of its text must be the same.
inline constexpr double kAgreeing = 0.95;
/// Times that are no further apart are as good as the same.
inline constexpr double kCloseTimes = 1.1;

struct MethodCandidate {
  std::string method;           ///< "full": dense attention
  std::string budget, options;  ///< as --attn-budget and --attn-opt have them; none for `full`
  /// The least of the kinds of task: share of the answers over dense attention's. None: no kind that dense attention
  /// answers.
  std::optional<double> answers;
  std::optional<double> agreement;  ///< tokens whose first choice is dense attention's: the mean over kinds, prose too
  int lost = 0;                     ///< answers fewer than dense attention's, where it is known of how many
  double divergence = 0;            ///< KL to dense in nats: the mean over kinds, prose too
  double answer_divergence = 0;     ///< the same without prose
  double ms = 0;                    ///< of a token at the wished length, verification counted in
  int drafts = 0;                   ///< at a time for which `ms` holds; 0: none is drafted
  std::string why_not;              ///< empty for the one that is taken
};

struct MethodWish {
  std::int64_t tokens = 0;  ///< of the context, prompt and answer
  Quality quality;          ///< of no meaning for drafts, which cannot change an answer
  bool drafts = false;      ///< lossless decoding: the method drafts, dense attention verifies
  /// By whose times; none, or one that the profile has none of: the profile's `speed`.
  std::optional<plan::SpeedMachine> machine = std::nullopt;
  /// Why a candidate does not run here; empty: it does. None: all do.
  std::function<std::string(const MethodCandidate&)> refusal = nullptr;
};

/// The candidates: the one that is taken, then the others by rising time. Dense attention is always among them. By
/// answers, of those whose times are close to the fastest's the one is taken that lost the fewest, of equals the one
/// with the least KL in its answers.
/// Throws UserError for a profile without measured times, with the cure.
std::vector<MethodCandidate> choose_method(const plan::Profile& profile, const MethodWish& wish);

/// "tidal:512" or "kascade:10%,prefill=dense".
std::string arm_text(const MethodCandidate& candidate);

struct DraftTimes {
  double draft_ms = 0;   ///< of a drafted token
  double dense_ms = 0;   ///< of a dense step, which verifies nothing
  double verify_ms = 0;  ///< of a verification of plan::kVerifiedDrafts; of fewer it lies between
};
/// Time of a token in lossless decoding with so many drafts at a time, each accepted with this chance.
double drafted_token_ms(const DraftTimes& times, double acceptance, int drafts);

}  // namespace glimpse::policies
