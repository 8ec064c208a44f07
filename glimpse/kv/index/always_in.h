// The part of a set that is in it whatever the scores: sink, local window, what the index does not cover, the current
// token. A value; any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "glimpse/kv/index/key_index.h"

namespace glimpse::kv {

/// [0, sink) and [tail, tokens) are always in; the terms choose from [sink, tail).
struct AlwaysIn {
  std::int64_t sink = 0;
  std::int64_t tail = 0;
  std::int64_t room = 0;  ///< tokens that the budget leaves for the rest
};

/// `local` is not always the selector's: the buffer of a chunk tree is what it does not cover.
inline AlwaysIn always_in(const plan::Selector& selector, const IndexQuery& query, std::int64_t covered,
                          std::int64_t local) {
  AlwaysIn in;
  in.sink = std::min<std::int64_t>(selector.sink, query.tokens);
  in.tail = std::max(in.sink, std::min({covered, query.tokens - 1, query.tokens - local}));
  const std::int64_t counted = in.sink + (selector.counts_local ? query.tokens - in.tail : 0);
  in.room = std::max<std::int64_t>(0, query.budget - counted);
  return in;
}

/// Where the local window begins in whole blocks: the block of the first token of the last max(local, 1).
inline std::int64_t window_block(const plan::Selector& selector, std::int64_t tokens) {
  return std::max<std::int64_t>(0, tokens - std::max(selector.local, 1)) / selector.block;
}

/// Appends [first, last) to an ascending set.
inline void add_range(std::vector<std::int32_t>& set, std::int64_t first, std::int64_t last) {
  if (last <= first) return;
  const std::size_t before = set.size();
  set.resize(before + static_cast<std::size_t>(last - first));
  std::iota(set.begin() + static_cast<std::ptrdiff_t>(before), set.end(), static_cast<std::int32_t>(first));
}

}  // namespace glimpse::kv
