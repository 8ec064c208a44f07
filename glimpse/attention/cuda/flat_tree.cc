#include "glimpse/attention/cuda/flat_tree.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "glimpse/base/dtype.h"
#include "glimpse/base/size.h"

namespace glimpse::attention::cuda {
namespace {

/// Appends an array with room for so many values; returns where it begins.
template <class T>
std::size_t add(std::vector<std::uint32_t>& words, const std::vector<T>& values, std::size_t room = 0) {
  constexpr std::size_t kAlignment = 4;
  const std::size_t at = (words.size() + kAlignment - 1) / kAlignment * kAlignment;
  words.resize(at + (std::max(values.size(), room) * sizeof(T) + 3) / 4);
  if (!values.empty()) std::memcpy(words.data() + at, values.data(), values.size() * sizeof(T));
  return at;
}

/// Tokens before the sink are in the first cluster, or in one of new tokens behind a prompt that ends in the sink.
FlatTree flatten_clusters(const kv::TokenClusters& index, std::int64_t sink) {
  FlatTree made;
  const FlatShape shape = shape_of(index);
  const std::size_t dim = shape.clusters == 0 ? 0 : index.mean_of(0).size();
  std::vector<std::uint16_t> rows(dim, 0);  // of the branch
  std::vector<std::int32_t> costs, of(size(shape.chunks), 0);
  for (std::int32_t cluster = 0; cluster < shape.clusters; ++cluster) {
    for (const float value : index.mean_of(cluster)) rows.push_back(f16_from_float(value));
    const std::span<const std::int32_t> tokens = index.tokens_of(cluster);
    costs.push_back(static_cast<std::int32_t>(tokens.end() - std::lower_bound(tokens.begin(), tokens.end(), sink)));
    for (const std::int32_t token : tokens) of[size(token)] = cluster;
  }
  made.room = of.size();
  made.centroids = add(made.words, rows);
  made.radii = add(made.words, std::vector<float>(size(shape.branches + shape.clusters), 0.0F));
  made.last_cluster = add(made.words, std::vector<std::int32_t>(size(shape.branches), shape.clusters));
  made.branch_tokens =
      add(made.words, std::vector<std::int32_t>(size(shape.branches), std::accumulate(costs.begin(), costs.end(), 0)));
  made.costs = add(made.words, costs);
  made.cluster_of = add(made.words, of);
  made.ends = made.cluster_of;                     // tokens have none
  add(made.words, std::vector<std::uint32_t>(4));  // so that the next one is aligned
  return made;
}

}  // namespace

FlatShape shape_of(const kv::KeyIndex& index) {
  if (const auto* const tree = dynamic_cast<const kv::ChunkTree*>(&index)) {
    return {tree->coarse().count(), tree->fine().count(), tree->is_built() ? tree->chunks().count() : 0};
  }
  const auto& tokens = dynamic_cast<const kv::TokenClusters&>(index);
  return {tokens.clusters() > 0 ? 1 : 0, tokens.clusters(), static_cast<std::int32_t>(tokens.covered())};
}

FlatTree flatten(const kv::KeyIndex& index, std::int64_t sink) {
  if (const auto* const clusters = dynamic_cast<const kv::TokenClusters*>(&index)) {
    return flatten_clusters(*clusters, sink);
  }
  const auto& tree = dynamic_cast<const kv::ChunkTree&>(index);
  FlatTree made;
  std::vector<std::uint16_t> rows(tree.coarse().rows().begin(), tree.coarse().rows().end());
  rows.insert(rows.end(), tree.fine().rows().begin(), tree.fine().rows().end());
  std::vector<float> radii(tree.coarse().radii().begin(), tree.coarse().radii().end());
  radii.insert(radii.end(), tree.fine().radii().begin(), tree.fine().radii().end());
  std::vector<std::int32_t> last, tokens, ends, costs(size(tree.fine().count()), 0);
  for (std::int32_t branch = 0; branch < tree.coarse().count(); ++branch) {
    last.push_back(tree.clusters_of(branch).second);
    tokens.push_back(tree.branch_tokens(branch));
  }
  const std::vector<std::int32_t> of = tree.clusters_of_chunks();
  for (std::size_t chunk = 0; chunk < of.size(); ++chunk) {
    const auto number = static_cast<std::int32_t>(chunk);
    ends.push_back(static_cast<std::int32_t>(tree.chunks().end(number)));
    costs[size(of[chunk])] +=
        static_cast<std::int32_t>(std::max<std::int64_t>(0, ends.back() - std::max(tree.chunks().begin(number), sink)));
  }
  made.room = of.size() + of.size() / 4 + 256;
  made.centroids = add(made.words, rows);
  made.radii = add(made.words, radii);
  made.last_cluster = add(made.words, last);
  made.branch_tokens = add(made.words, tokens);
  made.costs = add(made.words, costs);
  made.cluster_of = add(made.words, of, made.room);
  made.ends = add(made.words, ends, made.room);
  add(made.words, std::vector<std::uint32_t>(4));  // so that the next one is aligned
  return made;
}

/// Tokens of a cluster that lie behind the sink.
std::int32_t cost_of(const kv::ChunkTree& tree, std::int32_t cluster, std::int64_t sink) {
  std::int64_t cost = 0;
  for (const std::int32_t chunk : tree.chunks_of(cluster)) {
    cost += std::max<std::int64_t>(0, tree.chunks().end(chunk) - std::max(tree.chunks().begin(chunk), sink));
  }
  return static_cast<std::int32_t>(cost);
}

}  // namespace glimpse::attention::cuda
