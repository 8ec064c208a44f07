// An index over the keys of one (sequence, layer, KV head): summaries that are searched instead of the keys. Owned by
// the sequence's state; it borrows views of the cache for the length of a call. One thread at a time per index;
// different indices may be used by different threads at once, each thread with its own IndexScratch.
//
// Positions count tokens of the sequence; heads with an index never free tokens, so a position is its slot. What an
// index holds depends on the tokens up to which it was extended alone, not on how many calls of `extend` brought them.
// A search whose index is behind, or that comes before it is built, reads what the index lacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "glimpse/base/boundary.h"
#include "glimpse/base/bytes.h"
#include "glimpse/kernels/views.h"
#include "glimpse/kv/index/gates.h"
#include "glimpse/plan/plan.h"

namespace glimpse::kv {

class PageDigests;

/// What an index may read while it grows.
struct KeySource {
  const kernels::HeadView* head = nullptr;
  kernels::KvFormat format;  ///< the same in every call
  /// [tokens] classes of the sequence's tokens; chunk_tree only, and may be empty there (text without delimiters).
  std::span<const Boundary> boundaries;
  std::int64_t prompt_tokens = 0;  ///< tokens of the prompt, the same in every call; all sources but page_bounds and
                                   ///< gate wait for the whole of it
  PageDigests* digests = nullptr;  ///< those on the pages of `head`, which digests of full blocks join; null: none do
};

/// One search. The set holds sink, local window, what the index does not cover yet, the current token, and the best
/// of the rest within `budget` (plan::Selector).
struct IndexQuery {
  const float* queries = nullptr;  ///< [group, d] after RoPE
  int group = 1;                   ///< the queries that choose together: a node's score is pooled over them
  float scale = 1;                 ///< positive
  std::int64_t tokens = 0;         ///< N, the current token included; no fewer than the index has taken in
  std::int64_t budget = 0;         ///< tokens; blocks of plan::Selector::block count whole
};

/// Working memory of searches, reused by all indices that a thread searches; grows on first use, then never.
struct IndexScratch {
  std::vector<float> queries;
  std::vector<float> scores;
  std::vector<std::int32_t> order;
  std::vector<std::uint64_t> chosen;
  std::vector<std::byte> workspace;
};

/// What an index that comes from a file may speak of.
struct SavedIndexLimits {
  KvType type = KvType::bf16;  ///< of the cache
  std::int64_t tokens = 0;
  std::int64_t prompt_tokens = 0;
};

class KeyIndex {
 public:
  virtual ~KeyIndex() = default;
  /// Takes in what is new of tokens [0, tokens); how much of it is the index's own rule.
  virtual void extend(const KeySource& keys, std::int64_t tokens) = 0;
  /// K of [first, last) was replaced: summaries are made anew, bounds stay bounds.
  virtual void refresh(const KeySource& keys, std::int64_t first, std::int64_t last) = 0;
  /// Writes the set to `set`, ascending and without duplicates. Returns the bytes of the index that it read. Allocates
  /// nothing once scratch and set have seen the size.
  virtual std::size_t search(const IndexQuery& query, IndexScratch& scratch, std::vector<std::int32_t>& set) const = 0;
  /// The units (blocks, chunks or clusters) that a search of `tokens` tokens chose to make `set`, ascending, each once.
  /// What is in a set whatever the scores say (sink, local window, what is not covered, outliers) stands for no unit. A
  /// unit keeps its number while the index grows.
  virtual std::vector<std::int32_t> units_of(std::span<const std::int32_t> set, std::int64_t tokens) const = 0;
  /// Tokens up to which the index was extended are taken back, and others may come in their place: `tokens` are left,
  /// and all that it covers. What it took in because of them stays, for it would take in the same for the others.
  virtual void take_back(std::int64_t /*tokens*/) {}
  /// Tokens that the index covers: [0, covered()).
  virtual std::int64_t covered() const = 0;
  /// Bytes held.
  virtual std::size_t bytes() const = 0;
  virtual std::unique_ptr<KeyIndex> clone() const = 0;
  /// Searches and growth go by `selector` from now on, one of the same_content() as that which it was made for.
  virtual void serve(const plan::Selector& selector) = 0;
  /// All that it holds, and back into an empty index of the same selector, which then answers bit for bit alike. load
  /// throws UserError for what no index of that selector and those tokens can hold; the index is of no use then.
  virtual void save(ByteWriter& to) const = 0;
  virtual void load(ByteReader& from, const SavedIndexLimits& limits) = 0;
};

/// The gates of a head, for the selectors that name a file of them.
struct HeadGates {
  std::shared_ptr<const Gates> gates;
  GateHead head;
};

/// An empty index for a selector with one term of such a source; `gates` are needed by Source::gate alone. Throws
/// UserError for index options that cannot run.
std::unique_ptr<KeyIndex> make_index(const plan::Selector& selector, int head_dim, const HeadGates& gates = {});

/// True when indices of both selectors hold the same of `tokens` tokens, of which `prompt_tokens` are prompt: the
/// selectors differ in the budget alone, and that has had no say in what was taken in.
bool same_content(const plan::Selector& a, const plan::Selector& b, std::int64_t prompt_tokens, std::int64_t tokens);

}  // namespace glimpse::kv
