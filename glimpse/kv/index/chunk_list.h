// LycheeCluster's chunks: tokens cut at text boundaries into pieces of 8 to 16. The whole prompt is cut at once; after
// it new tokens wait in a buffer, and when that is full its oldest leave as one chunk. Owns its list; const members
// from any thread, `advance` from one at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/base/boundary.h"
#include "glimpse/base/bytes.h"
#include "glimpse/plan/plan.h"

namespace glimpse::kv {

inline constexpr int kLeastChunk = 8;
inline constexpr int kMostChunk = 16;

/// Length of the chunk that begins at `begin`, of tokens [begin, end): from kLeastChunk tokens on it ends with the best
/// boundary, the last of equal ones, and with kMostChunk at the latest. `classes` may be empty: no boundaries.
int chunk_length(std::span<const Boundary> classes, std::int64_t begin, std::int64_t end);

/// Tokens that wait in the buffer at a length, when the oldest of them leave.
std::int64_t buffered_tokens(const plan::Selector& selector, std::int64_t tokens);

class ChunkList {
 public:
  explicit ChunkList(const plan::Selector& selector);

  /// Cuts what can be cut of [0, tokens), token by token: what comes out does not depend on the size of the steps.
  /// `classes` may end before `tokens`, behind the tokens that a cut looks at.
  void advance(std::span<const Boundary> classes, std::int64_t prompt_tokens, std::int64_t tokens);
  /// What is generated from now on waits as `selector` says, which differs in the budget alone.
  void serve(const plan::Selector& selector) { budget_ = selector.budget; }

  /// As KeyIndex::take_back().
  void take_back(std::int64_t tokens) { seen_ = std::min(seen_, std::max(tokens, covered())); }
  /// The most tokens up to which advance() has nothing to cut, behind the prompt.
  std::int64_t idle_until() const;
  std::int32_t count() const { return static_cast<std::int32_t>(ends_.size()); }
  std::int64_t begin(std::int32_t chunk) const { return chunk == 0 ? 0 : ends_[static_cast<std::size_t>(chunk) - 1]; }
  std::int64_t end(std::int32_t chunk) const { return ends_[static_cast<std::size_t>(chunk)]; }
  std::int64_t covered() const { return ends_.empty() ? 0 : ends_.back(); }
  /// What covered() is after such an advance(), which does not happen.
  std::int64_t covered_after(std::span<const Boundary> classes, std::int64_t prompt_tokens, std::int64_t tokens) const;
  /// The chunk that holds a covered token.
  std::int32_t chunk_of(std::int64_t token) const;
  void save(ByteWriter& to) const;
  void load(ByteReader& from, std::int64_t tokens);
  std::size_t bytes() const { return ends_.size() * sizeof(std::int32_t); }

 private:
  struct Behind {};
  /// Goes on where `before` ends, and holds its chunks as one.
  ChunkList(const ChunkList& before, Behind);
  std::int64_t buffer_tokens(std::int64_t tokens) const;
  bool cuts_at(std::int64_t now) const;
  void cut(std::span<const Boundary> classes, std::int64_t end);

  plan::Budget budget_;
  std::int64_t sink_;
  std::int64_t local_;
  bool fixed_;
  std::int64_t seen_ = 0;
  std::vector<std::int32_t> ends_;  ///< [chunks]
};

}  // namespace glimpse::kv
