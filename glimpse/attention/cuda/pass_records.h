// What heads read and handed on in a pass, for those who watch: queries come back with the logits, as sets do
// (HostSets).
#pragma once

#include <exception>
#include <functional>
#include <vector>

#include "glimpse/attention/cuda/audits.h"
#include "glimpse/attention/cuda/host_sets.h"
#include "glimpse/attention/cuda/pass_tables.h"
#include "glimpse/attention/records.h"
#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::attention::cuda {

/// Owned by a runner; borrows cache and stream. One thread at a time.
class PassRecords {
 public:
  using See = std::function<void(const HeadRecord&)>;

  PassRecords(const kv::Cache& cache, kernels::cuda::Stream& stream) : cache_(cache), stream_(stream) {}

  /// `width`: values of a row of queries. Nothing is recorded where nobody watches or no row decodes.
  void begin(const PassTables& tables, bool watched, int width);
  bool any() const { return !rows_.empty(); }
  /// Rows of the pass that decode.
  const std::vector<std::int32_t>& rows() const { return rows_; }
  /// [rows, H, d] of a layer, for a copy of their queries.
  float* queries(int layer) const;
  /// Queues the copy of queries.
  void finish();
  /// When the stream has passed: tells of every layer and head. `counts`: of the sets. What `see` throws ends its
  /// sequence's records, and is in failures().
  void tell(const PassTables& tables, const HostSets& host, const std::int32_t* counts, const Audits& audits,
            const See& see);
  /// [entries] of the last tell; empty: none.
  const std::vector<std::exception_ptr>& failures() const { return failures_; }
  /// How often the memory has moved.
  int moves() const { return moves_; }

 private:
  const kv::Cache& cache_;
  kernels::cuda::Stream& stream_;
  std::vector<std::int32_t> rows_;
  int width_ = 0, moves_ = 0;
  kernels::cuda::Array<float> queries_;  ///< [layers, rows, H, d]
  kernels::cuda::Pinned host_queries_;
  std::vector<std::int32_t> space_;
  std::vector<std::exception_ptr> failures_;
};

}  // namespace glimpse::attention::cuda
