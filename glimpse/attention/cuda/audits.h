// The truth about what heads read, in audited steps: the softmax mass that the sets of a row captured. On a device it
// follows from two log-sum-exps, of what a head read and of all keys: a pass over K beside the step. One thread at a
// time.
#pragma once

#include <cstdint>
#include <span>

#include "glimpse/attention/batch.h"
#include "glimpse/attention/records.h"
#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::attention::cuda {

/// Owned by a runner; borrows cache and stream.
class Audits {
 public:
  Audits(const kv::Cache& cache, kernels::cuda::Stream& stream) : cache_(cache), stream_(stream) {}

  /// For a batch of so many rows. `heads`: query heads.
  void begin(std::span<const SequenceRows> batch, int rows, int heads);
  bool any() const { return any_; }
  /// [R, H] of a layer: of what was read, and of all keys (audited rows alone).
  float* read_lse(int layer) const {
    return lse_.pointer().raw() + 2 * layer_values() * static_cast<std::size_t>(layer);
  }
  float* all_lse(int layer) const { return read_lse(layer) + layer_values(); }
  /// Queues the copy of both.
  void finish();
  /// When the stream has passed: what an audited sequence's head captured. One that forgot tokens says nothing.
  Coverage captured(const SequenceRows& rows, plan::SlotId at) const;
  /// The same of all its heads.
  void end(const SequenceRows& rows, ReadCounters& counters) const;
  /// How often the memory has moved.
  int moves() const { return moves_; }

 private:
  std::size_t layer_values() const { return static_cast<std::size_t>(rows_) * static_cast<std::size_t>(heads_); }

  const kv::Cache& cache_;
  kernels::cuda::Stream& stream_;
  bool any_ = false;
  int rows_ = 0, heads_ = 0, moves_ = 0;
  kernels::cuda::Array<float> lse_;  ///< [layers, 2, R, H]
  kernels::cuda::Pinned host_;
};

}  // namespace glimpse::attention::cuda
