// An ablation of LycheeCluster: its chunks without its tree, each scored by its own digest (Quest's bounds, a sphere,
// or mean and deviation). KeyIndex says who owns it and who may call.
//
// Memory, of a bf16 cache's K and V at 12 tokens a chunk: min_max and sphere 1/12, mean_deviation 1/6.
#pragma once

#include <memory>
#include <vector>

#include "glimpse/kv/index/chunk_list.h"
#include "glimpse/kv/index/digests.h"

namespace glimpse::kv {

class ChunkBounds final : public KeyIndex {
 public:
  ChunkBounds(const plan::Selector& selector, int head_dim);
  void extend(const KeySource& keys, std::int64_t tokens) override;
  void refresh(const KeySource& keys, std::int64_t first, std::int64_t last) override;
  /// Chunks in the order of their scores, up to the first that does not fit.
  std::size_t search(const IndexQuery& query, IndexScratch& scratch, std::vector<std::int32_t>& set) const override;
  /// Chunks.
  std::vector<std::int32_t> units_of(std::span<const std::int32_t> set, std::int64_t tokens) const override;
  std::int64_t covered() const override { return chunks_.covered(); }
  std::size_t bytes() const override { return chunks_.bytes() + digests_.bytes(); }
  std::unique_ptr<KeyIndex> clone() const override { return std::make_unique<ChunkBounds>(*this); }
  void take_back(std::int64_t tokens) override { chunks_.take_back(tokens); }
  void serve(const plan::Selector& selector) override {
    selector_ = selector;
    chunks_.serve(selector);
  }
  void save(ByteWriter& to) const override;
  void load(ByteReader& from, const SavedIndexLimits& limits) override;

  // What it holds, for tests, and for devices that keep a copy of it.
  const ChunkList& chunks() const { return chunks_; }
  const Digests& digests() const { return digests_; }

 private:
  /// Digests of the first `count` chunks, those there are among them.
  void append(const KeySource& keys, std::int32_t count);

  plan::Selector selector_;
  ChunkList chunks_;
  Digests digests_;
};

}  // namespace glimpse::kv
