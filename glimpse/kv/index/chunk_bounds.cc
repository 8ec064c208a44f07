#include "glimpse/kv/index/chunk_bounds.h"

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/kv/index/chunk_set.h"
#include "glimpse/kv/index/ranking.h"

namespace glimpse::kv {

ChunkBounds::ChunkBounds(const plan::Selector& selector, int head_dim)
    : selector_(selector),
      chunks_(selector),
      digests_(Digests::kind_of(selector.terms.front().index.digest), head_dim,
               selector.terms.front().index.deviation_weight) {}

void ChunkBounds::extend(const KeySource& keys, std::int64_t tokens) {
  chunks_.advance(keys.boundaries, keys.prompt_tokens, tokens);
  append(keys, chunks_.count());
}

void ChunkBounds::append(const KeySource& keys, std::int32_t count) {
  while (digests_.count() < count) {
    const std::int32_t chunk = digests_.count();
    digests_.append(keys, chunks_.begin(chunk), chunks_.end(chunk) - chunks_.begin(chunk));
  }
}

void ChunkBounds::refresh(const KeySource& keys, std::int64_t first, std::int64_t last) {
  const std::int64_t end = std::min(last, covered());
  if (first >= end) return;
  const std::int32_t chunks = chunks_.chunk_of(end - 1) + 1;
  const Digests behind = digests_.from(chunks);
  digests_.drop_from(chunks_.chunk_of(first));
  append(keys, chunks);
  digests_.join(behind);
}

std::size_t ChunkBounds::search(const IndexQuery& query, IndexScratch& scratch, std::vector<std::int32_t>& set) const {
  check(query.tokens > 0 && query.tokens >= covered(), "a search comes after the tokens of its index");
  const AlwaysIn in = always_in(selector_, query, covered(), 0);
  const auto count = static_cast<std::size_t>(chunks_.count());
  clear_chosen(scratch, chunks_.count());
  std::size_t read = 0;
  if (in.room > 0 && in.tail > in.sink) {
    if (scratch.scores.size() < count) scratch.scores.resize(count);
    if (scratch.order.size() < count) scratch.order.resize(count);
    const GroupQueries queries = group_queries(selector_.terms.front().group, query, digests_.dim(), scratch);
    digests_.score(queries, 0, digests_.count(), scratch, scratch.scores.data());
    Ranking ranked({scratch.scores.data(), count}, {scratch.order.data(), count});
    std::int64_t room = in.room;
    while (!ranked.empty()) {
      const std::int32_t chunk = ranked.pop();
      const std::int64_t cost = chunk_cost(chunks_, in, chunk);
      if (cost > room) break;
      room -= cost;
      mark_chosen(scratch, chunk);
    }
    read = digests_.read_bytes(count);
  }
  write_chunk_set(chunks_, in, query.tokens, scratch, set);
  return read;
}

std::vector<std::int32_t> ChunkBounds::units_of(std::span<const std::int32_t> set, std::int64_t tokens) const {
  IndexQuery query;
  query.tokens = tokens;
  return chunks_between(chunks_, always_in(selector_, query, covered(), 0), set);
}

}  // namespace glimpse::kv
