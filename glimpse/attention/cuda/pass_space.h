// Memory of a device that a pass's sets are made in: scores of a layer's rows, what searches need beside them, the sets
// of all layers, and their counts, which come back to the host.
#pragma once

#include <cstdint>

#include "glimpse/attention/cuda/pass_tables.h"
#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::attention::cuda {

/// Owned by a runner; borrows the stream. One thread at a time.
class PassSpace {
 public:
  explicit PassSpace(kernels::cuda::Stream& stream) : stream_(stream) {}

  /// For a pass whose tables are made; `gates`: queries go through gates in it.
  void make(const PassTables& tables, int heads, int kv_heads, bool gates);
  /// Of the layer that runs: [R of a group, H, stride].
  kernels::ScoreTable<kernels::Place::device> scores() const { return {scores_.pointer(), lse_.pointer(), stride_}; }
  const kernels::cuda::Array<float>& gate_queries() const { return gate_queries_; }
  kernels::SetTable<kernels::Place::device> sets() const {
    return {set_slots_.pointer(), counts_.pointer(), capacity_, sets_};
  }
  kernels::cuda::Memory& set_memory() { return set_slots_.memory(); }
  /// [sets] of each set that a tree's search made, the clusters that it opened.
  std::int32_t* opened() const { return counts_.pointer().raw() + sets_; }

  /// Queues the copy of the counts, when those of the pass before have been read.
  void finish();
  /// When the stream has passed: [sets] counts of the last pass that finished, and behind them opened().
  const std::int32_t* counts() const { return copied_; }
  /// How often the memory has moved.
  std::int64_t moves() const { return moves_; }

 private:
  kernels::cuda::Stream& stream_;
  kernels::cuda::Array<float> scores_, lse_, gate_queries_;
  kernels::cuda::Array<std::int32_t> set_slots_, counts_;
  kernels::cuda::Pinned host_counts_, older_counts_;  ///< the older one may hold what is not read yet
  const std::int32_t* copied_ = nullptr;
  std::size_t stride_ = 0;
  std::int32_t capacity_ = 0;
  int sets_ = 0;
  std::int64_t moves_ = 0;
};

}  // namespace glimpse::attention::cuda
