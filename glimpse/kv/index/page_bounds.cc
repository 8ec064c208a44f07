#include "glimpse/kv/index/page_bounds.h"

#include <algorithm>
#include <limits>

#include "glimpse/kernels/attention.h"
#include "glimpse/kv/index/always_in.h"
#include "glimpse/kv/index/block_search.h"

namespace glimpse::kv {

namespace {

/// Blocks that every query head scores before the next are read: 256 KB of means at d = 128, which a core caches.
constexpr std::size_t kBlocksAtOnce = 512;

/// The open blocks, and those of them that are in the set before any other.
struct Candidates {
  std::int32_t first = 0;
  std::size_t count = 0;
  std::span<const std::int32_t> always_reads;

  void mark(std::span<float> scores, float value) const {
    for (const std::int32_t block : always_reads) {
      if (block >= first && static_cast<std::size_t>(block - first) < count) {
        scores[static_cast<std::size_t>(block - first)] = value;
      }
    }
  }
};

/// Scores of the open blocks: the largest over the group of each query head's log-probability, whose softmax is over
/// the blocks that are not read anyway. The logarithm keeps the order and does not underflow.
void score_by_softmax(const Digests& digests, const Candidates& open, const IndexQuery& query, IndexScratch& scratch) {
  const auto group = static_cast<std::size_t>(query.group);
  const auto dim = static_cast<std::size_t>(digests.dim());
  float* const pooled = scratch.scores.data();
  float* const rows = pooled + open.count;  // [group, count]
  for (std::size_t from = 0; from < open.count; from += kBlocksAtOnce) {
    const std::size_t count = std::min(open.count - from, kBlocksAtOnce);
    for (std::size_t j = 0; j < group; ++j) {
      digests.score({query.queries + j * dim, 1, query.scale}, open.first + static_cast<std::int32_t>(from),
                    static_cast<std::int32_t>(count), scratch, rows + j * open.count + from);
    }
  }
  for (std::size_t j = 0; j < group; ++j) {
    const std::span<float> row(rows + j * open.count, open.count);
    open.mark(row, -std::numeric_limits<float>::infinity());
    const float lse = kernels::log_sum_exp(row);
    for (float& score : row) score -= lse;
  }
  kernels::pool_max_score(rows, open.count, query.group, {pooled, open.count});
}

}  // namespace

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
    const plan::GroupPooling pooling = selector.terms.front().group;
    const bool softmax = pooling == plan::GroupPooling::max_probability && query.group > 1;  // one's keeps its order
    const std::size_t needed = open * (softmax ? static_cast<std::size_t>(query.group) + 1 : 1);
    if (scratch.scores.size() < needed) scratch.scores.resize(needed);
    const std::span<float> scores(scratch.scores.data(), open);
    const Candidates candidates{static_cast<std::int32_t>(at.sink), open, search.always_reads};
    if (softmax) {
      score_by_softmax(digests, candidates, query, scratch);
    } else {
      const GroupQueries queries = group_queries(pooling, query, digests.dim(), scratch);
      digests.score(queries, candidates.first, static_cast<std::int32_t>(open), scratch, scores.data());
    }
    candidates.mark(scores, std::numeric_limits<float>::infinity());
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
  digests_.append_blocks(keys, selector_.block, static_cast<std::int32_t>(tokens / selector_.block));
}

void PageBounds::refresh(const KeySource& keys, std::int64_t first, std::int64_t last) {
  const std::int64_t block = selector_.block;
  const std::int64_t end = std::min<std::int64_t>((last + block - 1) / block, digests_.count());
  if (first >= last || first / block >= end) return;
  digests_.refresh_blocks(keys, selector_.block, static_cast<std::int32_t>(first / block),
                          static_cast<std::int32_t>(end));
}

std::size_t PageBounds::search(const IndexQuery& query, IndexScratch& scratch, std::vector<std::int32_t>& set) const {
  return search_blocks({&selector_, &digests_, {}}, query, scratch, set);
}

std::vector<std::int32_t> PageBounds::units_of(std::span<const std::int32_t> set, std::int64_t tokens) const {
  return open_blocks_of(selector_, digests_.count(), set, tokens);
}

}  // namespace glimpse::kv
