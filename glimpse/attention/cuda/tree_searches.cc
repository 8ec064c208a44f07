// What a pass asks of LycheeCluster's trees and ClusterKV's clusters.
#include "glimpse/attention/cuda/layer_lists.h"
#include "glimpse/attention/cuda/set_source.h"
#include "glimpse/kv/index/chunk_tree.h"

namespace glimpse::attention::cuda {

kv::AlwaysIn always_in(const PassEntry& entry, const SelectOp& select, std::int64_t covered) {
  kv::IndexQuery query;
  query.tokens = entry.tokens;
  query.budget = plan::budget_tokens(select.selector->budget, entry.tokens);
  const plan::Selector& selector = *select.selector;
  const bool tokens = selector.terms.front().source == plan::Source::token_clusters;
  return kv::always_in(selector, query, covered, tokens ? selector.local : 0);
}

namespace {

std::int64_t covered(const PassEntry& entry, const SelectOp& select) {
  return entry.trees->covered[entry.rows.state->head(select.writes.layer, select.first_head)];
}

kv::AlwaysIn always_in(const PassEntry& entry, const SelectOp& select) {
  return always_in(entry, select, covered(entry, select));
}

/// A search of a row, but for what differs from head to head.
kernels::cuda::TreeSearch search_of(const PassEntry& entry, const SelectOp& select, int row) {
  const plan::Selector& selector = *select.selector;
  const plan::Term& term = selector.terms.front();
  const kv::AlwaysIn in = always_in(entry, select);
  kernels::cuda::TreeSearch search;
  search.row = row;
  search.pooling =
      term.group == plan::GroupPooling::mean_score ? kernels::Pooling::mean_score : kernels::Pooling::max_score;
  search.mean_query = term.group == plan::GroupPooling::mean_query ? 1 : 0;
  search.whole = term.index.whole_clusters ? 1 : 0;
  search.sink = static_cast<std::int32_t>(in.sink);
  search.tail = static_cast<std::int32_t>(in.tail);
  search.room = in.tail > in.sink ? static_cast<std::int32_t>(in.room) : 0;
  search.least_branches = kv::kLeastBranchesRead;
  search.candidates = kv::kCandidateBudgets * plan::budget_tokens(selector.budget, entry.tokens);
  return search;
}

}  // namespace

bool searches_alike(const PassEntry& entry, const SelectOp& a, const SelectOp& b) {
  return a.selector == b.selector && covered(entry, a) == covered(entry, b);
}

std::int64_t tree_capacity(const PassEntry& entry, const SelectOp& select) {
  const std::int64_t most = length_step(entry.tokens);
  if (select.selector->terms.front().index.whole_clusters) return most;
  const kv::AlwaysIn in = always_in(entry, select);
  return std::max(select.capacity(most), std::min(most, in.sink + entry.tokens - in.tail + in.room));
}

std::int64_t searched_tokens(const PassEntry& entry, const SelectOp& select) {
  const kv::AlwaysIn in = always_in(entry, select);
  return std::min(in.room, in.tail - in.sink);
}

std::size_t add_tree_searches(const PassEntry& entry, std::span<const SelectOp> selects, int row, GroupLayer& to) {
  std::size_t count = 0;
  const SelectOp* last = nullptr;
  kernels::cuda::TreeSearch search;
  for (; count < selects.size() && (count == 0 || searches_tree(selects[count])); ++count) {
    const SelectOp& select = selects[count];
    // Most heads differ in little.
    if (last == nullptr || !searches_alike(entry, *last, select)) {
      search = search_of(entry, select, row);
    }
    last = &select;
    search.head = select.first_head;
    const int set = first_set(entry, select.writes);
    for (int list = 0; list < select.lists; ++list) {
      search.set = set + list;
      search.query = select.lists > 1 ? list : -1;
      to.trees.push_back(search);
    }
  }
  return count;
}

}  // namespace glimpse::attention::cuda
