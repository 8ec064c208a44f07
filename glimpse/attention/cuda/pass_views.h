// The views that a pass's kernels follow: of each layer, sequence and KV head its pages, and where rows are put
// together, or a prompt's are widened, the pages of those.
#pragma once

#include <span>

#include "glimpse/attention/cuda/made_rows.h"
#include "glimpse/attention/cuda/page_tables.h"
#include "glimpse/attention/cuda/pass_tables.h"
#include "glimpse/attention/cuda/widened.h"
#include "glimpse/kernels/cuda/staging.h"

namespace glimpse::attention::cuda {

/// Owned by a runner; borrows the cache. One thread at a time.
class PassViews {
 public:
  explicit PassViews(const kv::Cache& cache) : cache_(cache) {}

  /// For a pass whose sequences `pages` follows and whose tables are made: adds the views to `staging`.
  void begin(const PassTables& tables, const PageTables& pages, kernels::cuda::Staging& staging);
  /// Then, after their make_space().
  void add(const PassTables& tables, const MadeRows& made, kernels::cuda::Staging& staging);
  void add(const PassTables& tables, const Widened& widened, kernels::cuda::Staging& staging);
  /// What the cache holds, for a layer.
  kernels::KvTable<kernels::Place::device> cached(int layer) const { return at(cached_, layer); }
  /// The same with rows that are put together in place of the cache's; only where the pass has some.
  kernels::KvTable<kernels::Place::device> made(int layer) const { return at(made_, layer); }
  /// Prompts' rows that are widened; only where the pass has some, and other sequences' views lead nowhere.
  kernels::KvTable<kernels::Place::device> widened(int layer) const { return at(widened_, layer); }

 private:
  struct Table {
    kernels::KvFormat format;
    std::size_t place = 0;  ///< of its views, [layers, sequences, kv_heads]
  };
  kernels::KvTable<kernels::Place::device> at(const Table& table, int layer) const;
  std::size_t number(std::size_t layer, std::size_t sequence, std::size_t head) const;

  const kv::Cache& cache_;
  const kernels::cuda::Staging* staging_ = nullptr;
  std::size_t sequences_ = 0;
  int fresh_ = -1, longest_ = 0;
  Table cached_, made_, widened_;
};

}  // namespace glimpse::attention::cuda
