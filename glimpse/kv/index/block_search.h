// What searches over equal blocks share: where a search may choose, and the choosing. Functions on values; any thread.
#pragma once

#include <span>
#include <vector>

#include "glimpse/kv/index/key_index.h"

namespace glimpse::kv {

/// Blocks [sink, tail) are open; those before and after are in every set.
struct OpenBlocks {
  std::int64_t sink = 0;
  std::int64_t tail = 0;
  std::int64_t room = 0;  ///< blocks that the budget leaves for the open ones
  std::int64_t open() const { return tail - sink; }
};

/// `held`: blocks that the index covers, from block 0 on.
OpenBlocks open_blocks(const plan::Selector& selector, const IndexQuery& query, std::int64_t held);

/// Appends the tokens of the `room` best open blocks to an ascending set. `scores` [open], larger is better; there is
/// more than one to choose from.
void take_best(const OpenBlocks& at, std::int64_t block, std::span<const float> scores, IndexScratch& scratch,
               std::vector<std::int32_t>& set);

/// The open blocks that a set of whole blocks holds, ascending; `held` as above.
std::vector<std::int32_t> open_blocks_of(const plan::Selector& selector, std::int64_t held,
                                         std::span<const std::int32_t> set, std::int64_t tokens);

}  // namespace glimpse::kv
