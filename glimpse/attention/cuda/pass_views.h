// The views that a pass's kernels follow: of each layer, sequence and KV head its pages, and where rows are put
// together the pages of those.
#pragma once

#include <span>
#include <vector>

#include "glimpse/attention/cuda/made_rows.h"
#include "glimpse/attention/cuda/page_tables.h"
#include "glimpse/attention/cuda/pass_tables.h"
#include "glimpse/kernels/cuda/staging.h"

namespace glimpse::attention::cuda {

/// Owned by a runner; borrows the cache. One thread at a time.
class PassViews {
 public:
  explicit PassViews(const kv::Cache& cache) : cache_(cache) {}

  /// For a pass whose sequences `pages` follows and whose tables are made: adds the views to `staging`.
  void begin(const PassTables& tables, const PageTables& pages, MadeRows& made, kernels::cuda::Staging& staging);
  /// What the cache holds, for a layer.
  kernels::KvTable<kernels::Place::device> cached(int layer) const { return at(cached_place_, layer); }
  /// The same with rows that are put together in place of the cache's; only where the pass has some.
  kernels::KvTable<kernels::Place::device> made(int layer) const { return at(made_place_, layer); }

 private:
  kernels::KvTable<kernels::Place::device> at(std::size_t place, int layer) const;

  const kv::Cache& cache_;
  const kernels::cuda::Staging* staging_ = nullptr;
  std::vector<kernels::HeadView> views_;  ///< [layers, sequences, kv_heads]
  std::vector<kernels::HeadView> of_sequence_;
  std::size_t sequences_ = 0, cached_place_ = 0, made_place_ = 0;
};

}  // namespace glimpse::attention::cuda
