// LycheeCluster's trees and ClusterKV's clusters on a device: copies of the host's (kv::ChunkTree, kv::TokenClusters),
// which stay the truth, so that forks and sessions are the same on both. A tree is built on the host, from keys that
// are read back, when the prompt has ended; the chunks that later steps add are read back when they leave the buffer,
// once in some ten steps. Then the nodes that changed are sent. Steps in between read nothing, and no step waits
// inside.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/attention/cuda/index_builder.h"
#include "glimpse/kernels/cuda/layers.h"
#include "glimpse/kernels/cuda/operations.h"
#include "glimpse/kernels/cuda/trees.h"
#include "glimpse/kv/cache.h"
#include "glimpse/kv/index/chunk_tree.h"
#include "glimpse/kv/index/token_clusters.h"

namespace glimpse::attention::cuda {

/// The tree, or the clusters, of a head in a sequence's state; null where the head searches none.
kv::KeyIndex* tree_of(const SequenceRows& rows, int layer, int head);

/// Owned by a runner; borrows cache, stream and builder. One thread at a time.
class Trees {
 public:
  Trees(const kv::Cache& cache, kernels::cuda::Stream& stream, IndexBuilder& builder)
      : cache_(cache), stream_(stream), builder_(builder) {}

  /// Before a pass: what it did not write because it failed is sent anew.
  void begin();
  /// For each of the pass's sequences, which have their slots: host and device take in what a search of these rows
  /// reads. Throws UserError when the device has no room left.
  void follow(const SequenceRows& rows);
  /// What the pass sends to the device's copies; followed by written() when that is queued.
  const std::vector<kernels::cuda::Write>& writes() const { return writes_; }
  void written();
  /// When the stream has passed: the trees of a prompt that ended are built, corrected keys are taken in. Returns the
  /// seconds, of all threads together, that building trees of the sequence took in this pass.
  double end(const SequenceRows& rows);

  /// A head's copy, after follow(). The state is the sequence's.
  const kernels::cuda::Tree& tree(kv::SequenceId sequence, const SequenceState& state, int layer, int head) const;
  /// Clusters of a tree of the pass, at most; a bound that seldom changes, 0 where nobody searches one.
  int most() const { return most_; }

 private:
  /// A head's copy, in the sequence's memory.
  struct Copy {
    kernels::cuda::Tree tree;
    std::size_t room = 0;  ///< chunks
  };
  struct Known {
    std::uint64_t serial = 0;
    double build_s = 0;  ///< in this pass
    kernels::cuda::Memory memory;
    std::vector<Copy> copies;                  ///< [layer, kv_head]
    std::vector<kernels::cuda::Write> writes;  ///< to send
  };
  using Item = IndexItem;

  std::vector<Item> items_of(const SequenceRows& rows) const;
  static KeySpan wanted(const SequenceRows& rows, const Item& item, std::int64_t prompt, std::int64_t tokens);
  void extend(const SequenceRows& rows, std::span<Item> items, std::int64_t prompt, std::int64_t tokens);
  void build(const SequenceRows& rows);
  void mend(const SequenceRows& rows);
  void send_all(const SequenceRows& rows, std::span<const Item> items, Known& known);
  void send_nodes(std::int64_t sink, const Copy& copy, Item& item, std::int32_t chunks) const;
  static void send_clusters(std::int64_t sink, const Copy& copy, Item& item, std::vector<std::int32_t> clusters);
  static void write(Item& item, const void* to, std::int32_t value);

  const kv::Cache& cache_;
  kernels::cuda::Stream& stream_;
  IndexBuilder& builder_;
  std::map<kv::SequenceId, Known> known_;  ///< an id that is used again is seen by its serial
  std::vector<kv::SequenceId> followed_;   ///< of this pass
  std::vector<kernels::cuda::Write> writes_;
  bool sent_ = true;
  int most_ = 0;
  double seconds_ = 0;  ///< of the last growth
};

}  // namespace glimpse::attention::cuda
