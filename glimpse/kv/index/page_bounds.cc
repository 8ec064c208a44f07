#include "glimpse/kv/index/page_bounds.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "glimpse/base/error.h"
#include "glimpse/kernels/attention.h"
#include "glimpse/kv/index/always_in.h"

namespace glimpse::kv {

std::size_t search_blocks(const BlockSearch& search, const IndexQuery& query, IndexScratch& scratch,
                          std::vector<std::int32_t>& set) {
  const plan::Selector& selector = *search.selector;
  const Digests& digests = *search.digests;
  const std::int64_t block = selector.block;
  check(query.tokens > 0 && query.tokens >= digests.count() * block, "a search comes after the tokens of its index");

  const std::int64_t blocks = (query.tokens + block - 1) / block;
  const std::int64_t sink = (std::min<std::int64_t>(selector.sink, query.tokens) + block - 1) / block;
  const std::int64_t window = window_block(selector, query.tokens);
  const std::int64_t tail = std::max(sink, std::min<std::int64_t>(window, digests.count()));
  const std::int64_t counted = sink + (selector.counts_local ? blocks - tail : 0);
  const auto beside = [&](std::int32_t at) { return !selector.counts_local && at >= sink && at < tail; };
  const auto outliers = std::count_if(search.always_reads.begin(), search.always_reads.end(), beside);
  const auto room = static_cast<std::size_t>(std::max<std::int64_t>(0, query.budget / block - counted) + outliers);
  const auto open = static_cast<std::size_t>(tail - sink);

  set.clear();
  add_range(set, 0, std::min(sink * block, query.tokens));
  std::size_t read = 0;
  if (room >= open) {
    add_range(set, sink * block, tail * block);
  } else if (room > 0) {
    if (scratch.scores.size() < open) scratch.scores.resize(open);
    if (scratch.order.size() < room) scratch.order.resize(room);
    const std::size_t workspace = kernels::select_workspace(open);
    if (scratch.workspace.size() < workspace) scratch.workspace.resize(workspace);
    const GroupQueries queries = group_queries(selector.terms.front().group, query, digests.dim(), scratch);
    const std::span<float> scores(scratch.scores.data(), open);
    digests.score(queries, static_cast<std::int32_t>(sink), static_cast<std::int32_t>(open), scratch, scores.data());
    for (const std::int32_t at : search.always_reads) {
      if (at >= sink && at < tail) {
        scores[static_cast<std::size_t>(at - sink)] = std::numeric_limits<float>::infinity();
      }
    }
    const std::size_t chosen =
        kernels::select_top_k(scores, room, {scratch.order.data(), room}, {scratch.workspace.data(), workspace});
    const auto size = static_cast<std::size_t>(block);
    const std::size_t before = set.size();
    set.resize(before + chosen * size);
    for (std::size_t i = 0; i < chosen; ++i) {
      std::int32_t* const to = set.data() + before + i * size;
      std::iota(to, to + size, static_cast<std::int32_t>((sink + scratch.order[i]) * block));
    }
    read = digests.read_bytes(open);
  }
  add_range(set, tail * block, query.tokens);
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
