#include "glimpse/kv/index/chunk_tree.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "glimpse/base/error.h"
#include "glimpse/kv/index/k_means.h"

namespace glimpse::kv {
namespace {

std::size_t at(std::int32_t index) {
  return static_cast<std::size_t>(index);
}

/// Cluster numbers ordered by unit, keeping their order within one; units are numbered by their first cluster.
std::vector<std::int32_t> by_unit(const Clusters& units) {
  std::vector<std::int32_t> order(units.nearest.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return units.nearest[at(a)] < units.nearest[at(b)]; });
  return order;
}

}  // namespace

ChunkTree::ChunkTree(const plan::Selector& selector, int head_dim)
    : selector_(selector), chunks_(selector), fine_(head_dim), coarse_(head_dim) {}

void ChunkTree::representative(const KeySource& keys, std::int32_t chunk, float* row) const {
  const auto first = static_cast<std::int32_t>(chunks_.begin(chunk));
  const auto tokens = static_cast<std::int32_t>(chunks_.end(chunk)) - first;
  const int dim = fine_.dim();
  check(keys.format.dim == dim, "an index is made for the cache's rows");
  std::vector<float> read(at(tokens + 1) * at(dim));
  kernels::read_keys(keys.format, *keys.head, first, tokens, read.data());
  const kernels::FloatRows rows{read.data(), tokens, dim};
  if (selector_.terms.front().index.max_pooling) {
    kernels::row_bounds(rows, read.data() + at(tokens) * at(dim), row);
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
      for (auto chunk = static_cast<std::int32_t>(next_.size()); chunk < chunks_.count(); ++chunk) insert(keys, chunk);
    } else if (plan::budget_tokens(selector_.budget, now) < now) {
      build(keys);
    }
  }
  seen_ = std::max(seen_, tokens);
}

void ChunkTree::build(const KeySource& keys) {
  built_ = true;
  const std::int32_t count = chunks_.count();
  if (count == 0) return;
  const auto dim = at(fine_.dim());
  std::vector<float> rows(at(count) * dim);
  for (std::int32_t chunk = 0; chunk < count; ++chunk) representative(keys, chunk, rows.data() + at(chunk) * dim);

  const std::int32_t wanted = std::max(1, count / selector_.terms.front().index.chunks_per_cluster);
  const Clusters clusters = spherical_k_means({rows.data(), count, fine_.dim(), wanted});
  const auto root = static_cast<std::int32_t>(std::ceil(std::sqrt(static_cast<double>(clusters.count))));
  const Clusters units =
      spherical_k_means({clusters.centroids.data(), clusters.count, fine_.dim(), std::min(kMostUnits, root)});

  std::vector<std::int32_t> number(at(clusters.count));
  std::vector<std::int32_t> of_unit(at(units.count), 0);
  for (const std::int32_t cluster : by_unit(units)) {
    number[at(cluster)] = fine_.count();
    fine_.add(clusters.centroids.data() + at(cluster) * dim, 0);
    ++of_unit[at(units.nearest[at(cluster)])];
  }
  members_.resize(at(clusters.count));
  last_child_.resize(at(units.count));
  std::partial_sum(of_unit.begin(), of_unit.end(), last_child_.begin());
  unit_tokens_.assign(at(units.count), 0);
  std::vector<std::int32_t> unit_chunks(at(units.count), 0);
  for (std::int32_t chunk = 0; chunk < count; ++chunk) {
    const std::int32_t old = clusters.nearest[at(chunk)];
    const std::int32_t cluster = number[at(old)];
    next_.push_back(-1);
    link(cluster, chunk);
    fine_.cover(cluster, rows.data() + at(chunk) * dim, 0);
    fine_.count_member(cluster);
    ++unit_chunks[at(units.nearest[at(old)])];
  }
  std::vector<float> centroid(dim);
  for (std::int32_t unit = 0; unit < units.count; ++unit) {
    coarse_.add(units.centroids.data() + at(unit) * dim, unit_chunks[at(unit)]);
    const auto [first, last] = clusters_of(unit);
    for (std::int32_t cluster = first; cluster < last; ++cluster) {
      fine_.read(cluster, centroid.data());
      coarse_.cover(unit, centroid.data(), fine_.radius(cluster));
    }
  }
}

void ChunkTree::link(std::int32_t cluster, std::int32_t chunk) {
  Members& members = members_[at(cluster)];
  (members.last < 0 ? members.first : next_[at(members.last)]) = chunk;
  members.last = chunk;
  const auto tokens = static_cast<std::int32_t>(chunks_.end(chunk) - chunks_.begin(chunk));
  members.tokens += tokens;
  unit_tokens_[at(unit_of(cluster))] += tokens;
}

void ChunkTree::insert(const KeySource& keys, std::int32_t chunk) {
  const auto dim = at(fine_.dim());
  std::vector<float> row(dim);
  representative(keys, chunk, row.data());
  next_.push_back(-1);
  if (fine_.count() == 0) {  // the budget was smaller than the least chunk
    fine_.add(row.data(), 1);
    coarse_.add(row.data(), 1);
    members_.resize(1);
    last_child_.push_back(1);
    unit_tokens_.push_back(0);
    link(0, chunk);
    fine_.cover(0, row.data(), 0);
    coarse_.cover(0, row.data(), fine_.radius(0));
    return;
  }
  std::vector<float> products(at(fine_.count()));
  fine_.products(row.data(), products.data());
  std::int32_t nearest = 0;
  for (std::int32_t c = 1; c < fine_.count(); ++c) {
    if (products[at(c)] > products[at(nearest)]) nearest = c;
  }
  const std::int32_t unit = unit_of(nearest);
  link(nearest, chunk);
  fine_.move_towards(nearest, row.data());
  fine_.cover(nearest, row.data(), 0);
  coarse_.move_towards(unit, row.data());
  std::vector<float> centroid(dim);
  fine_.read(nearest, centroid.data());
  coarse_.cover(unit, centroid.data(), fine_.radius(nearest));
}

void ChunkTree::refresh(const KeySource& keys, std::int64_t first, std::int64_t last) {
  const std::int64_t end = std::min(last, covered());
  if (first >= end) return;
  const std::int32_t from = chunks_.chunk_of(first);
  const std::int32_t to = chunks_.chunk_of(end - 1);
  std::vector<float> row(at(fine_.dim()));
  std::vector<float> centroid(row.size());
  for (std::int32_t cluster = 0; cluster < fine_.count(); ++cluster) {
    for (std::int32_t chunk = members_[at(cluster)].first; chunk >= 0; chunk = next_[at(chunk)]) {
      if (chunk < from || chunk > to) continue;
      // Members stay where they are and centroids too; only radii grow to cover what the chunk is now.
      representative(keys, chunk, row.data());
      fine_.cover(cluster, row.data(), 0);
      fine_.read(cluster, centroid.data());
      coarse_.cover(unit_of(cluster), centroid.data(), fine_.radius(cluster));
    }
  }
}

std::size_t ChunkTree::bytes() const {
  return chunks_.bytes() + fine_.bytes() + coarse_.bytes() + members_.size() * sizeof(Members) +
         (next_.size() + last_child_.size() + unit_tokens_.size()) * sizeof(std::int32_t);
}

std::vector<std::int32_t> ChunkTree::chunks_of(std::int32_t cluster) const {
  std::vector<std::int32_t> chunks;
  for (std::int32_t chunk = members_[at(cluster)].first; chunk >= 0; chunk = next_[at(chunk)]) chunks.push_back(chunk);
  return chunks;
}

std::pair<std::int32_t, std::int32_t> ChunkTree::clusters_of(std::int32_t unit) const {
  return {unit == 0 ? 0 : last_child_[at(unit) - 1], last_child_[at(unit)]};
}

std::int32_t ChunkTree::unit_of(std::int32_t cluster) const {
  return static_cast<std::int32_t>(std::upper_bound(last_child_.begin(), last_child_.end(), cluster) -
                                   last_child_.begin());
}

}  // namespace glimpse::kv
