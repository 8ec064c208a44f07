#include "glimpse/kv/index/page_bounds.h"

#include <algorithm>
#include <limits>

#include "glimpse/kv/index/always_in.h"
#include "glimpse/kv/index/block_search.h"

namespace glimpse::kv {

std::size_t search_blocks(const BlockSearch& search, const IndexQuery& query, IndexScratch& scratch,
                          std::vector<std::int32_t>& set) {
  const plan::Selector& selector = *search.selector;
  const Digests& digests = *search.digests;
  const std::int64_t block = selector.block;
  OpenBlocks at = open_blocks(selector, query, digests.count());
  // Outliers stand beside a budget that counts nothing else that is always read.
  const auto inside = [&](std::int32_t always) { return always >= at.sink && always < at.tail; };
  if (!selector.counts_local) {
    at.room += std::count_if(search.always_reads.begin(), search.always_reads.end(), inside);
  }
  const auto open = static_cast<std::size_t>(at.open());

  set.clear();
  add_range(set, 0, std::min(at.sink * block, query.tokens));
  std::size_t read = 0;
  if (at.room >= at.open()) {
    add_range(set, at.sink * block, at.tail * block);
  } else if (at.room > 0) {
    if (scratch.scores.size() < open) scratch.scores.resize(open);
    const GroupQueries queries = group_queries(selector.terms.front().group, query, digests.dim(), scratch);
    const std::span<float> scores(scratch.scores.data(), open);
    digests.score(queries, static_cast<std::int32_t>(at.sink), static_cast<std::int32_t>(open), scratch, scores.data());
    for (const std::int32_t always : search.always_reads) {
      if (inside(always)) {
        scores[static_cast<std::size_t>(always - at.sink)] = std::numeric_limits<float>::infinity();
      }
    }
    take_best(at, block, scores, scratch, set);
    read = digests.read_bytes(open);
  }
  add_range(set, at.tail * block, query.tokens);
  return read;
}

PageBounds::PageBounds(const plan::Selector& selector, int head_dim)
    : selector_(selector),
      digests_(Digests::kind_of(selector.terms.front().index.digest), head_dim,
               selector.terms.front().index.deviation_weight) {}

void PageBounds::extend(const KeySource& keys, std::int64_t tokens) {
  while (covered() + selector_.block <= tokens) digests_.append(keys, covered(), selector_.block);
}

void PageBounds::refresh(const KeySource& keys, std::int64_t first, std::int64_t last) {
  const std::int64_t block = selector_.block;
  for (std::int64_t at = first / block; at * block < std::min(last, covered()); ++at) {
    digests_.replace(keys, at * block, block, static_cast<std::int32_t>(at));
  }
}

std::size_t PageBounds::search(const IndexQuery& query, IndexScratch& scratch, std::vector<std::int32_t>& set) const {
  return search_blocks({&selector_, &digests_, {}}, query, scratch, set);
}

}  // namespace glimpse::kv
