#include "glimpse/attention/cuda/flat_tree.h"

#include <algorithm>
#include <cstring>

namespace glimpse::attention::cuda {
namespace {

std::size_t size(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

/// Appends an array with room for so many values; returns where it begins.
template <class T>
std::size_t add(std::vector<std::uint32_t>& words, const std::vector<T>& values, std::size_t room = 0) {
  constexpr std::size_t kAlignment = 4;
  const std::size_t at = (words.size() + kAlignment - 1) / kAlignment * kAlignment;
  words.resize(at + (std::max(values.size(), room) * sizeof(T) + 3) / 4);
  if (!values.empty()) std::memcpy(words.data() + at, values.data(), values.size() * sizeof(T));
  return at;
}

}  // namespace

FlatTree flatten(const kv::ChunkTree& tree, std::int64_t sink) {
  FlatTree made;
  std::vector<std::uint16_t> rows(tree.coarse().rows().begin(), tree.coarse().rows().end());
  rows.insert(rows.end(), tree.fine().rows().begin(), tree.fine().rows().end());
  std::vector<float> radii(tree.coarse().radii().begin(), tree.coarse().radii().end());
  radii.insert(radii.end(), tree.fine().radii().begin(), tree.fine().radii().end());
  std::vector<std::int32_t> last, tokens, ends, costs(size(tree.fine().count()), 0);
  for (std::int32_t unit = 0; unit < tree.coarse().count(); ++unit) {
    last.push_back(tree.clusters_of(unit).second);
    tokens.push_back(tree.unit_tokens(unit));
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
  made.unit_tokens = add(made.words, tokens);
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
