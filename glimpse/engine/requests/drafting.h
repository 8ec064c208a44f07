// A lossless request between two verifications: what it has drafted and not yet verified. A value; one thread at a
// time. Inside engine only.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "glimpse/engine/active_sequence.h"
#include "glimpse/engine/lossless.h"
#include "glimpse/text/sampler.h"

namespace glimpse::engine {

struct Drafting {
  DraftLength length;
  std::mt19937_64 random;
  std::optional<text::Sampler> sampler;                        ///< has accepted the drafts; empty: no cycle is open
  int wanted = 0;                                              ///< drafts of the cycle
  std::int64_t base = 0;                                       ///< tokens in the cache when it began
  std::vector<Token> rows;                                     ///< the token that starts it, then the drafts
  std::vector<std::vector<text::TokenProbability>> proposals;  ///< [drafts] what each was drawn from
  std::vector<text::TokenProbability> verdict;
  bool ended = false;  ///< the last draft ends the text: nothing is drafted after it
  enum class Turn : std::uint8_t { dense, draft, verify } turn = Turn::dense;
  double sparse_bytes = 0;  ///< that the last draft read

  std::size_t drafted() const { return rows.size() - 1; }
};

/// Takes drafts that are not verified out of the sequence again.
void leave_drafts(kv::Cache& cache, ActiveSequence& sequence, Drafting& drafting);

}  // namespace glimpse::engine
