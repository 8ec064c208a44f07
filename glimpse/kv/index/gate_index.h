// SeerAttention-R: the gate's key of each full block of tokens, and the best blocks by the gate's query are read; or,
// with a budget of tau=, the blocks whose share of the softmax over all blocks is at least that. The unfinished block
// holds the current token and is always in the set; in that softmax it stands with a score of 0, as in the authors'
// code. KeyIndex says who owns it and who may call.
//
// Memory: a row of f32 in the gate's space for each block, of a bf16 cache's K and V with blocks of 64 tokens and a
// gate as wide as a head 1/64; and the weights, once for all.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "glimpse/base/copy_on_write.h"
#include "glimpse/kv/index/block_search.h"

namespace glimpse::kv {

class GateIndex final : public KeyIndex {
 public:
  /// The selector's block is the gates'.
  GateIndex(const plan::Selector& selector, const HeadGates& gates);
  void extend(const KeySource& keys, std::int64_t tokens) override;
  void refresh(const KeySource& keys, std::int64_t first, std::int64_t last) override;
  std::size_t search(const IndexQuery& query, IndexScratch& scratch, std::vector<std::int32_t>& set) const override;
  /// Blocks.
  std::vector<std::int32_t> units_of(std::span<const std::int32_t> set, std::int64_t tokens) const override;
  std::int64_t covered() const override { return std::int64_t{held()} * selector_.block; }
  std::size_t bytes() const override { return keys_->size() * sizeof(float); }
  void save(ByteWriter& to) const override;
  void load(ByteReader& from, const SavedIndexLimits& limits) override;
  std::unique_ptr<KeyIndex> clone() const override { return std::make_unique<GateIndex>(*this); }
  void serve(const plan::Selector& selector) override { selector_ = selector; }

  /// [held, width]
  const std::vector<float>& keys() const { return *keys_; }
  std::int32_t held() const { return static_cast<std::int32_t>(keys_->size() / dim()); }  ///< blocks
  int width() const { return gates_.gates->dim(); }
  const Gates& gates() const { return *gates_.gates; }

 private:
  std::size_t dim() const { return static_cast<std::size_t>(gates_.gates->dim()); }
  void write(const KeySource& keys, std::int64_t block);
  /// Gate scores of blocks [first, first + count). Returns the bytes read.
  std::size_t score(const IndexQuery& query, std::pair<std::int64_t, std::int64_t> first_count, IndexScratch& scratch,
                    float* scores) const;
  std::size_t take_probable(const IndexQuery& query, const OpenBlocks& at, IndexScratch& scratch,
                            std::vector<std::int32_t>& set) const;

  plan::Selector selector_;
  HeadGates gates_;
  CopyOnWrite<std::vector<float>> keys_;  ///< [held, dim]; copies share it
};

}  // namespace glimpse::kv
