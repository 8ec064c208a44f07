// LycheeCluster's trees and ClusterKV's clusters on a device: copies of the host's (kv::ChunkTree, kv::TokenClusters),
// which stay the truth, so that forks and sessions are the same on both. When the prompt has ended the device finds
// their clusters (ClusterBuilder). What later steps add the host takes in, from keys that are read back: chunks when
// they leave the buffer, once in some ten steps. Then the nodes that changed are sent. Steps in between read nothing,
// and no step waits inside.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/attention/cuda/cluster_builder.h"
#include "glimpse/attention/cuda/index_copies.h"
#include "glimpse/attention/cuda/pass_entry.h"
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
      : cache_(cache), builder_(builder), clusters_(cache, stream, builder), copies_(cache, stream) {}

  /// Before a pass.
  void begin();
  /// For each of the pass's sequences, which have their slots: host and device take in what a search of these rows
  /// reads. Throws UserError when the device has no room left.
  void follow(const SequenceRows& rows);
  /// What the pass sends to the device's copies; followed by written() when that is queued.
  const std::vector<kernels::cuda::Write>& writes() const { return copies_.writes(); }
  void written() { copies_.written(); }
  /// When the stream has passed: the trees of a prompt that ended are built, corrected keys are taken in. Returns the
  /// seconds that building trees of the sequence took in this pass, of all threads together where the host built.
  double end(const SequenceRows& rows);

  /// After follow(), what the rows search; null where they search nothing. Valid while this pass and the next one
  /// follow: one that begins while another runs leaves what that one searches as it was.
  const SearchedTrees* searched(const SequenceRows& rows) const;
  /// Clusters of a tree of the pass, at most; a bound that seldom changes, 0 where nobody searches one.
  int most() const { return most_; }

 private:
  using Copy = TreeCopy;
  using Known = IndexCopies<Copy>::Known;
  using Item = IndexItem;
  /// What a step found, for those behind it that find no token to take in.
  struct Settled {
    std::uint64_t serial = 0;
    const SequenceState* state = nullptr;
    std::size_t head = 0;  ///< the first of them, [layer, kv_head]
    const kv::KeyIndex* index = nullptr;
    std::int64_t prompt = 0;
    std::int64_t idle_until = 0;  ///< tokens; none of the trees takes any in before
    int most = 0;
    std::array<SearchedTrees, 2> searched;  ///< of the last time that a tree took something in, and of the one before
    std::size_t last = 0;
  };

  void extend(const SequenceRows& rows, std::span<Item> items, std::int64_t prompt, std::int64_t tokens);
  bool is_settled(const SequenceRows& rows, std::int64_t tokens) const;
  void settle(const SequenceRows& rows, std::span<const Item> items);
  void build(const SequenceRows& rows);
  void mend(const SequenceRows& rows);
  void send_all(const SequenceRows& rows, std::span<const Item> items);

  const kv::Cache& cache_;
  IndexBuilder& builder_;
  ClusterBuilder clusters_;
  IndexCopies<Copy> copies_;
  std::map<kv::SequenceId, Settled> settled_;  ///< an id that is used again is seen by its serial
  int most_ = 0;
  double seconds_ = 0;  ///< of the last growth
};

}  // namespace glimpse::attention::cuda
