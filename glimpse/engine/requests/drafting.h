// A lossless request between two verifications: what it has drafted and not yet verified. A value; one thread at a
// time. Inside engine only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "glimpse/engine/active_sequence.h"
#include "glimpse/engine/lossless.h"
#include "glimpse/text/sampler.h"

namespace glimpse::engine {

struct Drafting {
  DraftLength length;
  std::mt19937_64 random;
  std::optional<text::Sampler> sampler;                        ///< has accepted the drafts; empty: no cycle is open
  std::size_t wanted = 0;                                      ///< drafts of the cycle
  std::int64_t base = 0;                                       ///< tokens in the cache when it began
  std::array<Token, kMostDrafts + 1> rows{};                   ///< the token that starts it, then the drafts
  std::size_t drafted = 0;                                     ///< drafts so far
  std::vector<std::vector<text::TokenProbability>> proposals;  ///< [drafts] what each was drawn from
  std::vector<text::TokenProbability> verdict;
  bool ended = false;       ///< the last draft ends the text: nothing is drafted after it
  double sparse_bytes = 0;  ///< that the last draft read

  /// The first `count` of the rows.
  std::span<const Token> first(std::size_t count) const { return std::span(rows).first(count); }
};

/// Takes drafts that are not verified out of the sequence again.
void leave_drafts(kv::Cache& cache, ActiveSequence& sequence, Drafting& drafting);

}  // namespace glimpse::engine
