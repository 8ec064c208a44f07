// ClusterKV: k-means over single keys, by direction; a cluster's score is q.(mean of its keys). The prompt behind the
// sink makes one cluster for every `tokens_per_cluster` of its tokens, `new_tokens` generated ones make
// new_tokens / tokens_per_cluster more. The last chosen cluster is cut at the budget, its lower positions stay.
// First centroids are found by k-means++ over a sample of the keys: all of them would be read once for each cluster.
// KeyIndex says who owns it and who may call.
//
// Memory, of a bf16 cache's K and V at d = 64 and 80 tokens a cluster: 2.8 %.
#pragma once

#include <memory>
#include <vector>

#include "glimpse/base/copy_on_write.h"
#include "glimpse/kv/index/always_in.h"
#include "glimpse/kv/index/digests.h"

namespace glimpse::kv {

class TokenClusters final : public KeyIndex {
 public:
  TokenClusters(const plan::Selector& selector, int head_dim) : selector_(selector), dim_(head_dim) {}
  void extend(const KeySource& keys, std::int64_t tokens) override;
  void refresh(const KeySource& keys, std::int64_t first, std::int64_t last) override;
  std::size_t search(const IndexQuery& query, IndexScratch& scratch, std::vector<std::int32_t>& set) const override;
  /// Clusters.
  std::vector<std::int32_t> units_of(std::span<const std::int32_t> set, std::int64_t tokens) const override;
  std::int64_t covered() const override { return covered_; }
  std::size_t bytes() const override;
  std::unique_ptr<KeyIndex> clone() const override { return std::make_unique<TokenClusters>(*this); }
  void serve(const plan::Selector& selector) override { selector_ = selector; }
  void save(ByteWriter& to) const override;
  void load(ByteReader& from, const SavedIndexLimits& limits) override;

  /// For devices that find clusters themselves: the tokens [first, last) that extend() to `tokens` clusters as the
  /// prompt's, and how many clusters it wants. `last` 0: none.
  struct Cut {
    std::int64_t first = 0, last = 0;
    std::int32_t wanted = 0;
  };
  Cut cut(std::int64_t prompt, std::int64_t tokens) const;
  /// Takes them in: `nearest` [last - first] the cluster of each token, below `count`, none empty; their means
  /// [count, d].
  void adopt(const Cut& cut, std::span<const std::int32_t> nearest, std::int32_t count, std::span<const float> means);

  std::int32_t clusters() const { return static_cast<std::int32_t>(content_->ends.size()); }
  /// The tokens of a cluster, ascending.
  std::span<const std::int32_t> tokens_of(std::int32_t cluster) const;
  /// [d]
  std::span<const float> mean_of(std::int32_t cluster) const;

 private:
  struct Content {
    std::vector<float> means;           ///< [clusters, d]
    std::vector<std::int32_t> ends;     ///< [clusters] in members
    std::vector<std::int32_t> members;  ///< tokens, cluster by cluster
  };
  void add(const KeySource& keys, std::int64_t first, std::int64_t last, std::int32_t wanted);
  void list_members(std::int64_t first, std::span<const std::int32_t> nearest, std::int32_t count);
  void find_mean(const KeySource& keys, std::int32_t cluster);

  plan::Selector selector_;
  int dim_;
  std::int64_t covered_ = 0;
  CopyOnWrite<Content> content_;  ///< copies share it
};

}  // namespace glimpse::kv
