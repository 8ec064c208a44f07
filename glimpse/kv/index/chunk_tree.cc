#include "glimpse/kv/index/chunk_tree.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "glimpse/base/error.h"
#include "glimpse/base/size.h"

namespace glimpse::kv {
namespace {

/// Cluster numbers ordered by branch, keeping their order within one; branches are numbered by their first cluster.
std::vector<std::int32_t> by_branch(const Clusters& branches) {
  std::vector<std::int32_t> order(branches.nearest.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return branches.nearest[size(a)] < branches.nearest[size(b)];
  });
  return order;
}

}  // namespace

ChunkTree::ChunkTree(const plan::Selector& selector, int head_dim)
    : selector_(selector), chunks_(selector), nodes_(Nodes(head_dim)) {}

void ChunkTree::representative(const KeySource& keys, std::int32_t chunk, float* row) const {
  const auto first = static_cast<std::int32_t>(chunks_.begin(chunk));
  const auto tokens = static_cast<std::int32_t>(chunks_.end(chunk)) - first;
  const int dim = nodes_->fine.dim();
  check(keys.format.dim == dim, "an index is made for the cache's rows");
  std::vector<float> read(size(tokens + 1) * size(dim));
  kernels::read_keys(keys.format, *keys.head, first, tokens, read.data());
  const kernels::FloatRows rows{read.data(), tokens, dim};
  if (selector_.terms.front().index.max_pooling) {
    kernels::row_bounds(rows, read.data() + size(tokens) * size(dim), row);
  } else {
    kernels::row_moments(rows, row, nullptr);
  }
  kernels::normalise_row(row, dim);
}

void ChunkTree::extend(const KeySource& keys, std::int64_t tokens) {
  if (tokens < keys.prompt_tokens) return;
  for (std::int64_t now = std::max<std::int64_t>(seen_ + 1, keys.prompt_tokens); now <= tokens; ++now) {
    chunks_.advance(keys.boundaries.first(std::min(keys.boundaries.size(), static_cast<std::size_t>(tokens))),
                    keys.prompt_tokens, now);
    if (built_) {
      for (auto chunk = static_cast<std::int32_t>(nodes_->next.size()); chunk < chunks_.count(); ++chunk)
        insert(keys, chunk);
    } else if (plan::budget_tokens(selector_.budget, now) < now) {
      build(keys);
    }
  }
  seen_ = std::max(seen_, tokens);
}

std::optional<ChunkTree::Cut> ChunkTree::cut(std::span<const Boundary> boundaries, std::int64_t prompt,
                                             std::int64_t tokens) const {
  if (built_ || tokens < prompt) return std::nullopt;
  Cut cut{chunks_, 0};
  for (std::int64_t now = std::max<std::int64_t>(seen_ + 1, prompt); now <= tokens; ++now) {
    cut.chunks.advance(boundaries.first(std::min(boundaries.size(), static_cast<std::size_t>(tokens))), prompt, now);
    cut.at = now;
    if (plan::budget_tokens(selector_.budget, now) < now) return cut;
  }
  return std::nullopt;
}

void ChunkTree::adopt(Cut cut, const Parts& parts) {
  check(!built_ && cut.chunks.count() > 0, "a tree is adopted once, and has chunks");
  built_ = true;
  chunks_ = std::move(cut.chunks);
  seen_ = cut.at;
  fill(parts.clusters, parts.branches, [&](std::int32_t cluster, std::int32_t chunk) {
    nodes_.own().fine.cover(cluster, parts.distances[size(chunk)]);
  });
}

std::int32_t ChunkTree::clusters_wanted(std::int32_t chunks) const {
  return std::max(1, chunks / selector_.terms.front().index.chunks_per_cluster);
}

std::int32_t ChunkTree::branches_wanted(std::int32_t clusters) {
  return std::min(kMostBranches, static_cast<std::int32_t>(std::ceil(std::sqrt(static_cast<double>(clusters)))));
}

void ChunkTree::build(const KeySource& keys) {
  built_ = true;
  const std::int32_t count = chunks_.count();
  if (count == 0) return;
  const int dim = nodes_->fine.dim();
  std::vector<float> rows(size(count) * size(dim));
  const auto row = [&](std::int32_t chunk) { return rows.data() + size(chunk) * size(dim); };
  for (std::int32_t chunk = 0; chunk < count; ++chunk) representative(keys, chunk, row(chunk));
  const Clusters clusters = spherical_k_means({rows.data(), count, dim, clusters_wanted(count)});
  const Clusters branches =
      spherical_k_means({clusters.centroids.data(), clusters.count, dim, branches_wanted(clusters.count)});
  fill(clusters, branches,
       [&](std::int32_t cluster, std::int32_t chunk) { nodes_.own().fine.cover(cluster, row(chunk), 0); });
}

template <class Cover>
void ChunkTree::fill(const Clusters& clusters, const Clusters& branches, const Cover& cover) {
  const std::int32_t count = chunks_.count();
  Nodes& nodes = nodes_.own();
  const auto dim = size(nodes.fine.dim());
  std::vector<std::int32_t> number(size(clusters.count));
  std::vector<std::int32_t> of_branch(size(branches.count), 0);
  for (const std::int32_t cluster : by_branch(branches)) {
    number[size(cluster)] = nodes.fine.count();
    nodes.fine.add(clusters.centroids.data() + size(cluster) * dim, 0);
    ++of_branch[size(branches.nearest[size(cluster)])];
  }
  nodes.members.resize(size(clusters.count));
  nodes.last_child.resize(size(branches.count));
  std::partial_sum(of_branch.begin(), of_branch.end(), nodes.last_child.begin());
  nodes.branch_tokens.assign(size(branches.count), 0);
  std::vector<std::int32_t> branch_chunks(size(branches.count), 0);
  for (std::int32_t chunk = 0; chunk < count; ++chunk) {
    const std::int32_t old = clusters.nearest[size(chunk)];
    const std::int32_t cluster = number[size(old)];
    nodes.next.push_back(-1);
    link(nodes, cluster, chunk);
    cover(cluster, chunk);
    nodes.fine.count_member(cluster);
    ++branch_chunks[size(branches.nearest[size(old)])];
  }
  std::vector<float> centroid(dim);
  for (std::int32_t branch = 0; branch < branches.count; ++branch) {
    nodes.coarse.add(branches.centroids.data() + size(branch) * dim, branch_chunks[size(branch)]);
    const auto [first, last] = nodes.clusters_of(branch);
    for (std::int32_t cluster = first; cluster < last; ++cluster) {
      nodes.fine.read(cluster, centroid.data());
      nodes.coarse.cover(branch, centroid.data(), nodes.fine.radius(cluster));
    }
  }
}

void ChunkTree::link(Nodes& nodes, std::int32_t cluster, std::int32_t chunk) const {
  Members& members = nodes.members[size(cluster)];
  (members.last < 0 ? members.first : nodes.next[size(members.last)]) = chunk;
  members.last = chunk;
  const auto tokens = static_cast<std::int32_t>(chunks_.end(chunk) - chunks_.begin(chunk));
  members.tokens += tokens;
  nodes.branch_tokens[size(nodes.branch_of(cluster))] += tokens;
}

void ChunkTree::insert(const KeySource& keys, std::int32_t chunk) {
  Nodes& nodes = nodes_.own();
  const auto dim = size(nodes.fine.dim());
  std::vector<float> row(dim);
  representative(keys, chunk, row.data());
  nodes.next.push_back(-1);
  if (nodes.fine.count() == 0) {  // the budget was smaller than the least chunk
    nodes.fine.add(row.data(), 1);
    nodes.coarse.add(row.data(), 1);
    nodes.members.resize(1);
    nodes.last_child.push_back(1);
    nodes.branch_tokens.push_back(0);
    link(nodes, 0, chunk);
    nodes.fine.cover(0, row.data(), 0);
    nodes.coarse.cover(0, row.data(), nodes.fine.radius(0));
    return;
  }
  std::vector<float> products(size(nodes.fine.count()));
  nodes.fine.products(row.data(), products.data());
  std::int32_t nearest = 0;
  for (std::int32_t c = 1; c < nodes.fine.count(); ++c) {
    if (products[size(c)] > products[size(nearest)]) nearest = c;
  }
  const std::int32_t branch = nodes.branch_of(nearest);
  link(nodes, nearest, chunk);
  nodes.fine.move_towards(nearest, row.data());
  nodes.fine.cover(nearest, row.data(), 0);
  nodes.coarse.move_towards(branch, row.data());
  std::vector<float> centroid(dim);
  nodes.fine.read(nearest, centroid.data());
  nodes.coarse.cover(branch, centroid.data(), nodes.fine.radius(nearest));
}

void ChunkTree::refresh(const KeySource& keys, std::int64_t first, std::int64_t last) {
  const std::int64_t end = std::min(last, covered());
  if (first >= end) return;
  Nodes& nodes = nodes_.own();
  const std::int32_t from = chunks_.chunk_of(first);
  const std::int32_t to = chunks_.chunk_of(end - 1);
  std::vector<float> row(size(nodes.fine.dim()));
  std::vector<float> centroid(row.size());
  for (std::int32_t cluster = 0; cluster < nodes.fine.count(); ++cluster) {
    for (std::int32_t chunk = nodes.members[size(cluster)].first; chunk >= 0; chunk = nodes.next[size(chunk)]) {
      if (chunk < from || chunk > to) continue;
      // Members stay where they are and centroids too; only radii grow to cover what the chunk is now.
      representative(keys, chunk, row.data());
      nodes.fine.cover(cluster, row.data(), 0);
      nodes.fine.read(cluster, centroid.data());
      nodes.coarse.cover(nodes.branch_of(cluster), centroid.data(), nodes.fine.radius(cluster));
    }
  }
}

std::size_t ChunkTree::bytes() const {
  return chunks_.bytes() + nodes_->fine.bytes() + nodes_->coarse.bytes() + nodes_->members.size() * sizeof(Members) +
         (nodes_->next.size() + nodes_->last_child.size() + nodes_->branch_tokens.size()) * sizeof(std::int32_t);
}

std::vector<std::int32_t> ChunkTree::chunks_of(std::int32_t cluster) const {
  std::vector<std::int32_t> chunks;
  for (std::int32_t chunk = nodes_->members[size(cluster)].first; chunk >= 0; chunk = nodes_->next[size(chunk)])
    chunks.push_back(chunk);
  return chunks;
}

std::vector<std::int32_t> ChunkTree::clusters_of_chunks(std::int32_t first) const {
  std::vector<std::int32_t> of(nodes_->next.size() - size(first));
  for (std::int32_t cluster = 0; cluster < nodes_->fine.count(); ++cluster) {
    const Members& members = nodes_->members[size(cluster)];
    if (members.last < first) continue;  // they ascend
    for (std::int32_t chunk = members.first; chunk >= 0; chunk = nodes_->next[size(chunk)]) {
      if (chunk >= first) of[size(chunk - first)] = cluster;
    }
  }
  return of;
}

std::pair<std::int32_t, std::int32_t> ChunkTree::Nodes::clusters_of(std::int32_t branch) const {
  return {branch == 0 ? 0 : last_child[size(branch) - 1], last_child[size(branch)]};
}

std::int32_t ChunkTree::Nodes::branch_of(std::int32_t cluster) const {
  return static_cast<std::int32_t>(std::upper_bound(last_child.begin(), last_child.end(), cluster) -
                                   last_child.begin());
}

}  // namespace glimpse::kv
