// ShadowKV's landmarks: the mean key of each full chunk of the prompt (plan::Selector::block tokens, 8 in the paper).
// What the prompt leaves over and all that follows it stays uncovered, hence always in the set. Outlier chunks, those
// whose keys point least the way of their mean, are read before any other. Where the prompt's keys are read from (the
// cache, or their low-rank form) is the reader's business. KeyIndex says who owns it and who may call.
//
// Memory, of a bf16 cache's K and V: 1/8 with chunks of 8 (f32, because their rounding would reorder near equal
// chunks).
#pragma once

#include <memory>
#include <vector>

#include "glimpse/base/copy_on_write.h"
#include "glimpse/kv/index/digests.h"

namespace glimpse::kv {

class Landmarks final : public KeyIndex {
 public:
  Landmarks(const plan::Selector& selector, int head_dim);
  void extend(const KeySource& keys, std::int64_t tokens) override;
  void refresh(const KeySource& keys, std::int64_t first, std::int64_t last) override;
  std::size_t search(const IndexQuery& query, IndexScratch& scratch, std::vector<std::int32_t>& set) const override;
  /// Chunks that are no outliers.
  std::vector<std::int32_t> units_of(std::span<const std::int32_t> set, std::int64_t tokens) const override;
  std::int64_t covered() const override { return std::int64_t{digests_.count()} * selector_.block; }
  std::size_t bytes() const override;
  std::unique_ptr<KeyIndex> clone() const override { return std::make_unique<Landmarks>(*this); }
  void serve(const plan::Selector& selector) override { selector_ = selector; }
  void save(ByteWriter& to) const override;
  void load(ByteReader& from, const SavedIndexLimits& limits) override;

  const Digests& digests() const { return digests_; }
  /// The outlier chunks, farthest first.
  const std::vector<std::int32_t>& outliers() const { return outliers_; }
  /// The same chunks, ascending.
  const std::vector<std::int32_t>& outliers_by_position() const { return outliers_by_position_; }

 private:
  float least_cosine(const KeySource& keys, std::int32_t chunk) const;
  void rank_outliers();

  plan::Selector selector_;
  Digests digests_;
  /// [chunks] the least cosine of a key with its landmark; empty: none wanted. Copies share it.
  CopyOnWrite<std::vector<float>> cosines_;
  std::vector<std::int32_t> outliers_;  ///< chunks
  std::vector<std::int32_t> outliers_by_position_;
};

}  // namespace glimpse::kv
