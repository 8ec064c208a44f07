// The search of LycheeCluster's trees (kv::ChunkTree) on a device, queued on a stream beside the operations of
// kernels/ops.h: branches, then the clusters of the best ones, then the chunks of the best clusters until the
// budget is full. Chunks that have scores are chosen in the same way, without a tree (kv::ChunkBounds).
//
// All memory is the device's, owned by the caller until the stream has passed the call. One thread at a time. Errors:
// as kernels/cuda/operations.h; a search of more clusters, or chunks that have scores, than shared memory holds is a
// UserError.
#pragma once

#include <cstdint>

#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::kernels::cuda {

/// Branches of a tree, at most.
inline constexpr int kMostTreeBranches = 64;

/// One KV head's tree, flat. A branch's clusters lie one after the other; a chunk begins where the one before it ends.
/// Of chunks that have scores there are their ends alone, as many clusters as chunks, and no branches.
struct Tree {
  const std::uint16_t* centroids = nullptr;     ///< [branches + clusters, d] f16; aligned to 16 bytes
  const float* radii = nullptr;                 ///< [branches + clusters]
  const std::int32_t* last_cluster = nullptr;   ///< [branches] one past the branch's last
  const std::int32_t* branch_tokens = nullptr;  ///< [branches]
  const std::int32_t* costs = nullptr;          ///< [clusters] tokens behind the sink
  const std::int32_t* cluster_of = nullptr;     ///< [chunks] below `clusters`; of tokens aligned to 16 bytes
  const std::int32_t* ends = nullptr;           ///< [chunks]; null: a chunk is a token
  std::int32_t branches = 0, clusters = 0, chunks = 0;
};

/// What a row asks of a tree: its set is [0, sink), chunks of [sink, tail) for `room` tokens, and [tail, ...). Branches
/// are opened, the best first, until there are `least_branches` that hold `candidates` tokens. A node's score is
/// q.centroid + |q| radius. Where chunks are tokens `tail` may lie before their end: what lies behind it is in the set
/// and fills no room.
struct TreeSearch {
  Tree tree;
  std::int32_t row = 0, head = 0;
  std::int32_t query = -1;  ///< of the group, alone; -1: all of it
  std::int32_t set = 0;
  Pooling pooling = Pooling::max_score;  ///< of scores; or mean_score
  std::int32_t mean_query = 0;           ///< 1: the group's mean query asks, instead of pooled scores
  std::int32_t whole = 0;                ///< 1: the last cluster is taken whole
  std::int32_t scored = 0;               ///< 1: clusters are single chunks, which have their scores (TreeSearchOp)
  std::int32_t sink = 0, tail = 0;
  std::int32_t room = 0;
  std::int32_t least_branches = 1;
  std::int64_t candidates = 0;
};

struct TreeSearchOp {
  KvTable<Place::device> cache;  ///< for the number of slots that a row sees
  RowTable<Place::device> rows;
  Pointer<const float, Place::device> q;  ///< [R, H, d] after RoPE
  int group = 1;
  float scale = 1;                                    ///< positive
  Pointer<const TreeSearch, Place::device> searches;  ///< [count]
  int count = 0;
  int most = 0;  ///< clusters of a tree, at most: launches are sized by it
  SetTable<Place::device> sets;
  Pointer<std::int32_t, Place::device> opened;  ///< [sets] clusters that were scored, or null
  ScoreTable<Place::device> scores;  ///< of searches that say `scored`: what search_units made of their chunks
};
void search_trees(Stream& stream, const TreeSearchOp& op);

}  // namespace glimpse::kernels::cuda
