// Quest and ArkVale: a digest for each full block of tokens, the best blocks are read. The unfinished block holds the
// current token and is always in the set. KeyIndex says who owns it and who may call.
//
// Memory, of a bf16 cache's K and V with blocks of 16: min_max 1/16, mean_deviation 1/8, sphere 1/16; half of it with
// blocks of 32.
#pragma once

#include <memory>
#include <vector>

#include "glimpse/kv/index/digests.h"

namespace glimpse::kv {

/// What a search over equal blocks needs to know.
struct BlockSearch {
  const plan::Selector* selector = nullptr;
  const Digests* digests = nullptr;            ///< one a block, from block 0 on
  std::span<const std::int32_t> always_reads;  ///< blocks that are in the set before any other
};

/// The set in whole blocks: budget / block of them, sink, local window and uncovered blocks among them; without
/// counts_local the latter two and always_reads come beside the budget. Returns the bytes read.
std::size_t search_blocks(const BlockSearch& search, const IndexQuery& query, IndexScratch& scratch,
                          std::vector<std::int32_t>& set);

class PageBounds final : public KeyIndex {
 public:
  PageBounds(const plan::Selector& selector, int head_dim);
  void extend(const KeySource& keys, std::int64_t tokens) override;
  void refresh(const KeySource& keys, std::int64_t first, std::int64_t last) override;
  std::size_t search(const IndexQuery& query, IndexScratch& scratch, std::vector<std::int32_t>& set) const override;
  /// Blocks.
  std::vector<std::int32_t> units_of(std::span<const std::int32_t> set, std::int64_t tokens) const override;
  std::int64_t covered() const override { return std::int64_t{digests_.count()} * selector_.block; }
  std::size_t bytes() const override { return digests_.bytes(); }
  std::unique_ptr<KeyIndex> clone() const override { return std::make_unique<PageBounds>(*this); }
  void serve(const plan::Selector& selector) override { selector_ = selector; }
  void save(ByteWriter& to) const override;
  void load(ByteReader& from, const SavedIndexLimits& limits) override;

  const Digests& digests() const { return digests_; }

 private:
  plan::Selector selector_;
  Digests digests_;
};

}  // namespace glimpse::kv
