// Lossless decoding: tokens are drafted by the sparse plan and verified by one dense pass, so that what comes out is
// what dense attention would have said: the draft's agreeing prefix and one token of the dense pass. Speculative
// sampling (Leviathan, Kalman, Matias, 2023, algorithm 1; Chen et al., 2023) with the plan as the model's own draft.
//
// Plain values and functions; one thread at a time. They never look at a clock: the same seed drafts the same tokens.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "glimpse/exec/executor.h"
#include "glimpse/text/sampler.h"

namespace glimpse::engine {

/// With the token that starts them they are the rows of one verification.
inline constexpr int kMostDrafts = exec::kMostRowsBehind - 1;

/// What a step reads, in bytes, and what several rows make of it.
struct DraftCosts {
  double weights = 0;
  double dense = 0;   ///< K and V of a dense step
  double sparse = 0;  ///< K, V and indices of a drafted step
  int group = 1;      ///< query heads of a KV head
  exec::RowCosts rows = {};
};

/// How many tokens to draft before the next verification, from the share of drafts accepted so far.
class DraftLength {
 public:
  /// `fixed` tokens each time, at most kMostDrafts; 0: as many as should pay.
  explicit DraftLength(int fixed = 0) : fixed_(fixed) {}
  /// 0: drafting does not pay here: take a dense step. After a while it is tried again.
  int next(const DraftCosts& costs);
  /// True where next() has 0 without a look at costs, and this is in place of it.
  bool rest();
  void record(int drafted, int accepted);
  double acceptance() const { return accepted_ / tried_; }

 private:
  /// Hopeful, or drafts that would pay are never tried; and of so much weight that one early rejection stops nothing
  /// and a text that does not pay shows after two or three.
  static constexpr double kFirstAccepted = 9.5, kFirstTried = 10;
  static constexpr int kFirstRest = 64;
  static constexpr int kLongestRest = 1024;

  int fixed_;
  double accepted_ = kFirstAccepted, tried_ = kFirstTried;  ///< decayed counts
  int rest_ = 0;                                            ///< dense steps to go
  int next_rest_ = kFirstRest;
};

/// Time of a cycle of `drafts` drafted tokens and their verification, over that of a dense step.
double cycle_cost(const DraftCosts& costs, int drafts);

/// Tokens that a cycle brings on average when each draft is accepted with this chance.
double cycle_tokens(double acceptance, int drafts);

/// Uniform in [0, 1), the same on every machine.
double uniform(std::mt19937_64& random);

/// A token drawn from a distribution (ascending ids).
text::Token draw(std::span<const text::TokenProbability> distribution, std::mt19937_64& random);

/// The rejection rule for one drafted token, drawn from `proposed`, when the dense pass says `wanted`: the draft with
/// probability min(1, wanted / proposed), else a token drawn from what wanted has over proposed. The result is
/// distributed as `wanted`.
text::Token verified(text::Token draft, std::span<const text::TokenProbability> proposed,
                     std::span<const text::TokenProbability> wanted, std::mt19937_64& random);

}  // namespace glimpse::engine
