// Chosen chunks as bits in scratch memory, and the set that they make with what is always in: scanning bits gives the
// ascending order that sorting would cost a search's time for. Functions of their arguments; one thread per scratch.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "glimpse/kv/index/always_in.h"
#include "glimpse/kv/index/chunk_list.h"

namespace glimpse::kv {

inline void clear_chosen(IndexScratch& scratch, std::int64_t count) {
  const auto words = static_cast<std::size_t>(count + 63) / 64;
  if (scratch.chosen.size() < words) scratch.chosen.resize(words);
  std::fill_n(scratch.chosen.begin(), words, 0);
}

inline void mark_chosen(IndexScratch& scratch, std::int64_t at) {
  scratch.chosen[static_cast<std::size_t>(at) / 64] |= std::uint64_t{1} << (at % 64);
}

/// Calls `take` with each marked number below `count`, ascending.
template <class Take>
void for_each_chosen(const IndexScratch& scratch, std::int64_t count, const Take& take) {
  const auto words = static_cast<std::size_t>(count + 63) / 64;
  for (std::size_t word = 0; word < words; ++word) {
    for (std::uint64_t bits = scratch.chosen[word]; bits != 0; bits &= bits - 1) {
      take(static_cast<std::int64_t>(word) * 64 + std::countr_zero(bits));
    }
  }
}

/// Tokens that a chunk adds to what is always in.
inline std::int64_t chunk_cost(const ChunkList& chunks, const AlwaysIn& in, std::int32_t chunk) {
  return std::max<std::int64_t>(0, std::min(chunks.end(chunk), in.tail) - std::max(chunks.begin(chunk), in.sink));
}

/// Sink, marked chunks, tail.
inline void write_chunk_set(const ChunkList& chunks, const AlwaysIn& in, std::int64_t tokens,
                            const IndexScratch& scratch, std::vector<std::int32_t>& set) {
  set.clear();
  add_range(set, 0, in.sink);
  for_each_chosen(scratch, chunks.count(), [&](std::int64_t found) {
    const auto chunk = static_cast<std::int32_t>(found);
    add_range(set, std::max(chunks.begin(chunk), in.sink), std::min(chunks.end(chunk), in.tail));
  });
  add_range(set, in.tail, tokens);
}

/// The chunks, ascending, of a set's tokens between sink and tail.
inline std::vector<std::int32_t> chunks_between(const ChunkList& chunks, const AlwaysIn& in,
                                                std::span<const std::int32_t> set) {
  std::vector<std::int32_t> found;
  for (const std::int32_t token : set) {
    if (token < in.sink || token >= in.tail) continue;
    const bool same = !found.empty() && token < chunks.end(found.back());
    if (!same) found.push_back(chunks.chunk_of(token));
  }
  return found;
}

}  // namespace glimpse::kv
