// A tree of chunks in flat arrays, as kernels::cuda::Tree has them; clusters of tokens are a tree of one branch, whose
// chunks are tokens. Values and functions of their arguments; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/kv/index/chunk_tree.h"
#include "glimpse/kv/index/token_clusters.h"

namespace glimpse::attention::cuda {

/// Arrays one behind the other, each aligned to 16 bytes; where they begin, in words of 32 bits.
struct FlatTree {
  std::vector<std::uint32_t> words;
  std::size_t centroids = 0, radii = 0, last_cluster = 0, branch_tokens = 0, costs = 0, cluster_of = 0, ends = 0;
  std::size_t room = 0;  ///< chunks, those to come included

  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(words)); }
};

struct FlatShape {
  std::int32_t branches = 0, clusters = 0, chunks = 0;
};
/// Of a kv::ChunkTree or kv::TokenClusters.
FlatShape shape_of(const kv::KeyIndex& index);
/// The same; `sink`: tokens that are always in, which cost nothing.
FlatTree flatten(const kv::KeyIndex& index, std::int64_t sink);

/// Tokens of a cluster that lie behind the sink.
std::int32_t cost_of(const kv::ChunkTree& tree, std::int32_t cluster, std::int64_t sink);

}  // namespace glimpse::attention::cuda
