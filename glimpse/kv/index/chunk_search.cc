// The search of a chunk tree: branches, then their clusters, then the chunks of the best clusters until the budget is
// full.
#include <algorithm>
#include <cmath>

#include "glimpse/base/error.h"
#include "glimpse/base/size.h"
#include "glimpse/kv/index/chunk_set.h"
#include "glimpse/kv/index/chunk_tree.h"
#include "glimpse/kv/index/ranking.h"

namespace glimpse::kv {
namespace {

/// |q| of each query, scaled, behind what group_queries wrote. Returns them; may move scratch.queries.
const float* query_norms(GroupQueries& queries, int dim, IndexScratch& scratch) {
  const auto size = static_cast<std::size_t>(dim);
  const auto group = static_cast<std::size_t>(queries.group);
  const bool inside = queries.data == scratch.queries.data();
  if (scratch.queries.size() < size + group) scratch.queries.resize(size + group);
  if (inside) queries.data = scratch.queries.data();
  float* norms = scratch.queries.data() + size;
  for (std::size_t j = 0; j < group; ++j) {
    double squares = 0;
    for (std::size_t i = 0; i < size; ++i)
      squares += static_cast<double>(queries.data[j * size + i]) * queries.data[j * size + i];
    norms[j] = static_cast<float>(std::sqrt(squares) * queries.scale);
  }
  return norms;
}

}  // namespace

std::size_t ChunkTree::search(const IndexQuery& query, IndexScratch& scratch, std::vector<std::int32_t>& set) const {
  check(query.tokens > 0 && query.tokens >= covered(), "a search comes after the tokens of its index");
  const AlwaysIn in = always_in(selector_, query, covered(), 0);
  clear_chosen(scratch, chunks_.count());
  const std::size_t read = in.room > 0 && in.tail > in.sink ? choose(query, in, scratch) : 0;
  write_chunk_set(chunks_, in, query.tokens, scratch, set);
  return read;
}

std::size_t ChunkTree::choose(const IndexQuery& query, const AlwaysIn& in, IndexScratch& scratch) const {
  GroupQueries queries = group_queries(selector_.terms.front().group, query, nodes_->fine.dim(), scratch);
  const float* norms = query_norms(queries, nodes_->fine.dim(), scratch);
  const bool whole = selector_.terms.front().index.whole_clusters;
  const std::size_t branches = size(nodes_->coarse.count());
  const std::size_t nodes = branches + size(nodes_->fine.count());
  if (scratch.scores.size() < nodes) scratch.scores.resize(nodes);
  // Branches' and clusters' places, and the cluster that each place of the second ranking stands for.
  const std::size_t places = branches + 2 * size(nodes_->fine.count());
  if (scratch.order.size() < places) scratch.order.resize(places);

  nodes_->coarse.score(queries, norms, 0, nodes_->coarse.count(), scratch.scores.data());
  Ranking ranked_branches({scratch.scores.data(), branches}, {scratch.order.data(), branches});
  float* const scores = scratch.scores.data() + branches;
  std::int32_t* const cluster_at = scratch.order.data() + branches + size(nodes_->fine.count());

  // Branches in ascending order, so that equal clusters rank by their number.
  std::int64_t candidates = 0;
  std::size_t opened = 0;
  while (!ranked_branches.empty() && (opened < kLeastBranchesRead || candidates < kCandidateBudgets * query.budget)) {
    const std::int32_t branch = ranked_branches.pop();
    candidates += nodes_->branch_tokens[size(branch)];
    ++opened;
  }
  // What was popped lies behind what was not.
  std::int32_t* const open = scratch.order.data() + branches - opened;
  std::sort(open, open + opened);
  std::size_t clusters = 0;
  for (std::size_t i = 0; i < opened; ++i) {
    const auto [first, last] = clusters_of(open[i]);
    nodes_->fine.score(queries, norms, first, last - first, scores + clusters);
    for (std::int32_t cluster = first; cluster < last; ++cluster) cluster_at[clusters++] = cluster;
  }

  Ranking ranked({scores, clusters}, {scratch.order.data() + branches, clusters});
  std::int64_t room = in.room;
  bool full = false;
  while (!ranked.empty() && !full && room > 0) {
    const Members& members = nodes_->members[size(cluster_at[size(ranked.pop())])];
    for (std::int32_t chunk = members.first; chunk >= 0 && !full; chunk = nodes_->next[size(chunk)]) {
      const std::int64_t cost = chunk_cost(chunks_, in, chunk);
      full = !whole && cost > room;
      if (full) break;
      room -= cost;
      mark_chosen(scratch, chunk);
    }
  }
  return nodes_->coarse.read_bytes(branches) + nodes_->fine.read_bytes(clusters);
}

std::vector<std::int32_t> ChunkTree::units_of(std::span<const std::int32_t> set, std::int64_t tokens) const {
  IndexQuery query;
  query.tokens = tokens;
  const std::vector<std::int32_t> chosen = chunks_between(chunks_, always_in(selector_, query, covered(), 0), set);
  std::vector<std::int32_t> clusters;
  for (std::int32_t cluster = 0; cluster < nodes_->fine.count(); ++cluster) {
    bool found = false;
    for (std::int32_t chunk = nodes_->members[size(cluster)].first; chunk >= 0 && !found;
         chunk = nodes_->next[size(chunk)]) {
      found = std::binary_search(chosen.begin(), chosen.end(), chunk);
    }
    if (found) clusters.push_back(cluster);
  }
  return clusters;
}

}  // namespace glimpse::kv
