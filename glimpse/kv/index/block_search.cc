#include "glimpse/kv/index/block_search.h"

#include <algorithm>
#include <numeric>

#include "glimpse/base/error.h"
#include "glimpse/kernels/attention.h"
#include "glimpse/kv/index/always_in.h"

namespace glimpse::kv {

OpenBlocks open_blocks(const plan::Selector& selector, const IndexQuery& query, std::int64_t held) {
  const std::int64_t block = selector.block;
  check(query.tokens > 0 && query.tokens >= held * block, "a search comes after the tokens of its index");
  const std::int64_t blocks = (query.tokens + block - 1) / block;
  const std::int64_t window = window_block(selector, query.tokens);
  OpenBlocks at;
  at.sink = (std::min<std::int64_t>(selector.sink, query.tokens) + block - 1) / block;
  at.tail = std::max(at.sink, std::min<std::int64_t>(window, held));
  const std::int64_t counted = at.sink + (selector.counts_local ? blocks - at.tail : 0);
  at.room = std::max<std::int64_t>(0, query.budget / block - counted);
  return at;
}

void take_best(const OpenBlocks& at, std::int64_t block, std::span<const float> scores, IndexScratch& scratch,
               std::vector<std::int32_t>& set) {
  const auto room = static_cast<std::size_t>(at.room);
  if (scratch.order.size() < room) scratch.order.resize(room);
  const std::size_t workspace = kernels::select_workspace(scores.size());
  if (scratch.workspace.size() < workspace) scratch.workspace.resize(workspace);
  const std::size_t chosen =
      kernels::select_top_k(scores, room, {scratch.order.data(), room}, {scratch.workspace.data(), workspace});
  const auto size = static_cast<std::size_t>(block);
  const std::size_t before = set.size();
  set.resize(before + chosen * size);
  for (std::size_t i = 0; i < chosen; ++i) {
    std::int32_t* const to = set.data() + before + i * size;
    std::iota(to, to + size, static_cast<std::int32_t>((at.sink + scratch.order[i]) * block));
  }
}

std::vector<std::int32_t> open_blocks_of(const plan::Selector& selector, std::int64_t held,
                                         std::span<const std::int32_t> set, std::int64_t tokens) {
  IndexQuery query;
  query.tokens = tokens;
  const OpenBlocks at = open_blocks(selector, query, held);
  std::vector<std::int32_t> blocks;
  for (const std::int32_t token : set) {
    const std::int32_t block = token / selector.block;
    if (block >= at.sink && block < at.tail && (blocks.empty() || block != blocks.back())) blocks.push_back(block);
  }
  return blocks;
}

}  // namespace glimpse::kv
