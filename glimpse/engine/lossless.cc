#include "glimpse/engine/lossless.h"

#include <algorithm>
#include <cmath>

#include "glimpse/base/error.h"

namespace glimpse::engine {
namespace {

using text::Token;
using text::TokenProbability;

// Time per byte, over that of a byte of weights: estimates from what the kernels were measured to do
// (docs/benchmarks.md).
constexpr double kKvByte = 1.3;        ///< of K and V read in order
constexpr double kGatheredByte = 2.4;  ///< of the same in pieces
constexpr double kFade = 0.95;         ///< of what earlier drafts say about the next
constexpr double kLeastGain = 1.01;    ///< over dense decoding, or drafting rests

float probability_of(Token token, std::span<const TokenProbability> distribution) {
  const auto found = std::lower_bound(distribution.begin(), distribution.end(), token,
                                      [](const TokenProbability& entry, Token wanted) { return entry.token < wanted; });
  return found != distribution.end() && found->token == token ? found->probability : 0.0F;
}

}  // namespace

double cycle_cost(const DraftCosts& costs, int drafts) {
  const double dense = costs.weights + kKvByte * costs.dense;
  const double draft = std::min(dense, costs.weights + kGatheredByte * costs.sparse);
  // The rows of a group lie side by side in vectors.
  const int vectors = ((drafts + 1) * costs.group + costs.rows.vector - 1) / costs.rows.vector;
  const double attention = (costs.rows.attention_once + costs.rows.attention_query * vectors * costs.rows.vector) /
                           (1 + costs.rows.dense_query * costs.group);
  const double verify =
      costs.weights * (1 + costs.rows.weights_row * drafts) + kKvByte * costs.dense * std::max(1.0, attention);
  return (drafts * draft + verify) / dense;
}

double cycle_tokens(double acceptance, int drafts) {
  double tokens = 1;
  double all = 1;
  for (int i = 0; i < drafts; ++i) tokens += all *= acceptance;
  return tokens;
}

int DraftLength::next(const DraftCosts& costs) {
  if (fixed_ > 0) return fixed_;
  if (rest()) return 0;
  int best = 1;
  double most = 0;
  // Where a verification can have the bits of dense decoding, no more drafts than it has them for.
  const int longest = costs.rows.same_bits > 1 ? std::min(costs.rows.same_bits - 1, kMostDrafts) : kMostDrafts;
  for (int drafts = 1; drafts <= longest; ++drafts) {
    const double gain = cycle_tokens(acceptance(), drafts) / cycle_cost(costs, drafts);
    if (gain <= most) continue;
    most = gain;
    best = drafts;
  }
  if (most >= kLeastGain) return best;
  // Drafts that were never tried cannot show that the text has changed: the next try starts as the first did.
  rest_ = next_rest_ - 1;
  next_rest_ = std::min(2 * next_rest_, kLongestRest);
  accepted_ = kFirstAccepted;
  tried_ = kFirstTried;
  return 0;
}

bool DraftLength::rest() {
  if (rest_ == 0) return false;
  --rest_;
  return true;
}

void DraftLength::record(int drafted, int accepted) {
  accepted_ = kFade * accepted_ + accepted;
  tried_ = kFade * tried_ + accepted + (accepted < drafted ? 1 : 0);
  if (accepted == drafted) next_rest_ = kFirstRest;
}

double uniform(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) * 0x1p-53;
}

Token draw(std::span<const TokenProbability> distribution, std::mt19937_64& random) {
  check(!distribution.empty(), "a distribution has a token");
  double sum = 0;
  for (const TokenProbability& entry : distribution) sum += static_cast<double>(entry.probability);
  double left = uniform(random) * sum;
  for (const TokenProbability& entry : distribution) {
    left -= static_cast<double>(entry.probability);
    if (left < 0) return entry.token;
  }
  return distribution.back().token;  // rounding
}

Token verified(Token draft, std::span<const TokenProbability> proposed, std::span<const TokenProbability> wanted,
               std::mt19937_64& random) {
  const auto offered = static_cast<double>(probability_of(draft, proposed));
  if (uniform(random) * offered < static_cast<double>(probability_of(draft, wanted))) return draft;
  std::vector<TokenProbability> rest;
  for (const TokenProbability& entry : wanted) {
    const float over = entry.probability - probability_of(entry.token, proposed);
    if (over > 0) rest.push_back({entry.token, over});
  }
  // Equal but for rounding: any draw from the wanted one will do.
  return draw(rest.empty() ? wanted : std::span<const TokenProbability>(rest), random);
}

}  // namespace glimpse::engine
