// LycheeCluster: chunks on text boundaries, fine clusters over their representatives, branches (the paper's coarse
// units) over the clusters. Built over the prompt's chunks as soon as the budget no longer covers the context (until
// then every step is dense, and a tree built earlier would have too few clusters for what is generated); each later
// chunk goes to the nearest cluster. KeyIndex says who owns it and who may call.
//
// A cluster's chunks are a list by position; a branch's clusters lie one after the other, so that a search reads runs.
// Memory, of a bf16 cache's K and V at d = 64, 12 tokens a chunk and 2 chunks a cluster: 2.7 %, of which the clusters'
// centroids are 2.1 %. Representatives are not kept.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "glimpse/base/copy_on_write.h"
#include "glimpse/kv/index/always_in.h"
#include "glimpse/kv/index/chunk_list.h"
#include "glimpse/kv/index/k_means.h"
#include "glimpse/kv/index/node_level.h"

namespace glimpse::kv {

inline constexpr int kMostBranches = 64;
inline constexpr int kLeastBranchesRead = 4;
/// The branches that are looked into hold this many times the budget.
inline constexpr int kCandidateBudgets = 4;

class ChunkTree final : public KeyIndex {
 public:
  ChunkTree(const plan::Selector& selector, int head_dim);
  void extend(const KeySource& keys, std::int64_t tokens) override;
  void refresh(const KeySource& keys, std::int64_t first, std::int64_t last) override;
  std::size_t search(const IndexQuery& query, IndexScratch& scratch, std::vector<std::int32_t>& set) const override;
  /// Fine clusters.
  std::vector<std::int32_t> units_of(std::span<const std::int32_t> set, std::int64_t tokens) const override;
  void take_back(std::int64_t tokens) override {
    chunks_.take_back(tokens);
    seen_ = std::min(seen_, std::max(tokens, covered()));
  }
  std::int64_t covered() const override { return built_ ? chunks_.covered() : 0; }
  std::size_t bytes() const override;
  std::unique_ptr<KeyIndex> clone() const override { return std::make_unique<ChunkTree>(*this); }
  void serve(const plan::Selector& selector) override {
    selector_ = selector;
    chunks_.serve(selector);
  }
  void save(ByteWriter& to) const override;
  void load(ByteReader& from, const SavedIndexLimits& limits) override;

  /// For devices that find clusters themselves: the chunks that extend() to `tokens` would build a tree of, and the
  /// token at which it would. Nothing where it builds none.
  struct Cut {
    ChunkList chunks;
    std::int64_t at = 0;
  };
  std::optional<Cut> cut(std::span<const Boundary> boundaries, std::int64_t prompt, std::int64_t tokens) const;
  /// A tree of such chunks, as extend() to that token makes one. Clusters are of representatives, branches of clusters'
  /// centroids; none is empty. `distances` [chunks]: from each chunk's representative to its cluster's centroid as
  /// NodeLevel stores it, rounded up.
  struct Parts {
    Clusters clusters, branches;
    std::span<const float> distances;
  };
  void adopt(Cut cut, const Parts& parts);
  /// Clusters that a tree of so many chunks has, and branches, at most.
  std::int32_t clusters_wanted(std::int32_t chunks) const;
  static std::int32_t branches_wanted(std::int32_t clusters);

  // What the tree holds, for tests, reports, and devices that keep a copy of it.
  bool is_built() const { return built_; }
  const ChunkList& chunks() const { return chunks_; }
  const NodeLevel& fine() const { return nodes_->fine; }
  const NodeLevel& coarse() const { return nodes_->coarse; }
  /// The chunks of a cluster, by position.
  std::vector<std::int32_t> chunks_of(std::int32_t cluster) const;
  /// The cluster of each chunk from `first` on that is in one.
  std::vector<std::int32_t> clusters_of_chunks(std::int32_t first = 0) const;
  /// The clusters of a branch: [first, second).
  std::pair<std::int32_t, std::int32_t> clusters_of(std::int32_t branch) const { return nodes_->clusters_of(branch); }
  std::int32_t branch_of(std::int32_t cluster) const { return nodes_->branch_of(cluster); }
  std::int32_t branch_tokens(std::int32_t branch) const {
    return nodes_->branch_tokens[static_cast<std::size_t>(branch)];
  }
  /// The representative of a chunk, [d], from the cache as it is now.
  void representative(const KeySource& keys, std::int32_t chunk, float* row) const;

 private:
  /// The chunks of one cluster, linked by Nodes::next.
  struct Members {
    std::int32_t first = -1;
    std::int32_t last = -1;
    std::int32_t tokens = 0;
  };
  struct Nodes {
    explicit Nodes(int dim) : fine(dim), coarse(dim) {}
    std::pair<std::int32_t, std::int32_t> clusters_of(std::int32_t branch) const;
    std::int32_t branch_of(std::int32_t cluster) const;

    NodeLevel fine, coarse;
    std::vector<std::int32_t> next;           ///< [chunks] the next chunk of the same cluster, -1: none
    std::vector<Members> members;             ///< [clusters]
    std::vector<std::int32_t> last_child;     ///< [branches] one past the last cluster of the branch
    std::vector<std::int32_t> branch_tokens;  ///< [branches]
  };

  void build(const KeySource& keys);
  /// Nodes of what was clustered. `cover`: lets a cluster cover one of its chunks.
  template <class Cover>
  void fill(const Clusters& clusters, const Clusters& branches, const Cover& cover);
  void insert(const KeySource& keys, std::int32_t chunk);
  void link(Nodes& nodes, std::int32_t cluster, std::int32_t chunk) const;
  std::size_t choose(const IndexQuery& query, const AlwaysIn& in, IndexScratch& scratch) const;

  plan::Selector selector_;
  bool built_ = false;
  std::int64_t seen_ = 0;
  ChunkList chunks_;
  CopyOnWrite<Nodes> nodes_;  ///< copies share it
};

}  // namespace glimpse::kv
