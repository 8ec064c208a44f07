// Indices of clusters from keys where they lie: the device finds clusters (kernels/cuda/k_means.h), the host puts
// LycheeCluster's trees and ClusterKV's lists together. They are the host's then, as those that it builds itself.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "glimpse/attention/cuda/index_builder.h"
#include "glimpse/kernels/cuda/k_means.h"
#include "glimpse/kv/index/chunk_tree.h"
#include "glimpse/kv/index/token_clusters.h"

namespace glimpse::attention::cuda {

/// Owned by a runner; borrows cache, stream and builder. One thread at a time.
class ClusterBuilder {
 public:
  ClusterBuilder(const kv::Cache& cache, kernels::cuda::Stream& stream, const IndexBuilder& builder)
      : cache_(cache), stream_(stream), builder_(builder) {}

  /// Builds what extending the items to `tokens` would build of a prompt. What it leaves out, because there is nothing
  /// to build or the device has too little memory, is as it was. Returns the seconds that it took.
  double build(const SequenceRows& rows, std::span<IndexItem> items, std::int64_t prompt, std::int64_t tokens);

 private:
  using Items = std::span<IndexItem* const>;
  struct TreeGroup;
  struct TokenGroup;
  /// Spans of tokens whose keys become rows.
  struct Spans {
    std::vector<std::int32_t> begins, ends;
    bool largest = false, scaled = true;
    std::size_t size() const { return begins.size(); }
  };

  void build_trees(const SequenceRows& rows, Items items, std::int64_t prompt, std::int64_t tokens);
  void build_some_trees(const SequenceRows& rows, Items items, const kv::ChunkTree::Cut& cut);
  void build_lists(const SequenceRows& rows, Items items, std::int64_t prompt, std::int64_t tokens);
  void build_some_lists(const SequenceRows& rows, Items items, const kv::TokenClusters::Cut& cut);

  /// Calls `work` with as many items at a time as there is memory for; one takes `of_item` bytes, and no more than
  /// `most` are useful.
  void in_groups(Items items, std::size_t of_item, std::size_t most, const std::function<void(Items)>& work);
  void make_room(std::size_t bytes);
  void read_keys(const SequenceRows& rows, Items items, const Spans& spans, float* to);
  /// Bytes [from, to) of the memory, on the host when it returns; valid until the next call.
  const std::byte* comes_back(std::size_t from, std::size_t to);
  float* floats(std::size_t at) const { return reinterpret_cast<float*>(memory_.raw() + at); }

  const kv::Cache& cache_;
  kernels::cuda::Stream& stream_;
  const IndexBuilder& builder_;
  kernels::cuda::Memory memory_;  ///< of the clusters in hand
  kernels::cuda::Pinned host_;    ///< what comes back
};

}  // namespace glimpse::attention::cuda
