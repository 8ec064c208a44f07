// What attention on a device gives back to sequences that forget by it: sums of the probabilities that each slot got,
// made on the device beside the pass (kernels::ColumnSumsOp) and read when the pass has run. The host keeps the
// statistics, as on the CPU, and decides by them what the next step forgets: nothing waits inside a pass.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/attention/forget.h"
#include "glimpse/kernels/cuda/operations.h"
#include "glimpse/kernels/ops.h"

namespace glimpse::attention::cuda {

/// Owned by a runner; borrows cache and stream. One thread at a time.
class Feedback {
 public:
  Feedback(const kv::Cache& cache, kernels::cuda::Stream& stream) : cache_(cache), stream_(stream) {}

  /// For a batch that has its slots; `lengths` as PassTables::make. `heads`: query heads.
  void begin(std::span<const SequenceRows> batch, std::span<const std::int64_t> lengths, int heads);
  /// Rows whose probabilities are wanted; `sequence` counts the batch.
  const std::vector<kernels::PromptRows>& pieces() const { return pieces_; }
  bool any() const { return !pieces_.empty(); }
  /// Slots of a row of sums: a bound that seldom changes.
  std::size_t stride() const { return stride_; }
  /// [R, H] for the log-sum-exps of the layer that runs.
  float* lse() const { return any() ? lse_.pointer().raw() : nullptr; }
  /// [pieces, kv_heads, stride] of a layer.
  float* sums(int layer) const;
  /// Queues the copy of the sums.
  void finish();
  /// When the stream has passed: takes them into the states of the batch.
  void end();
  /// How often the memory has moved.
  int moves() const { return moves_; }

 private:
  void make_space(std::size_t rows, int heads);
  void take(const SequenceRows& rows, const kernels::PromptRows& piece, plan::SlotId head, const float* sums);
  std::size_t layer_values() const;

  const kv::Cache& cache_;
  kernels::cuda::Stream& stream_;
  std::vector<SequenceRows> rows_;  ///< [pieces]
  std::vector<kernels::PromptRows> pieces_;
  std::size_t stride_ = 0;
  int group_ = 1, moves_ = 0;
  kernels::cuda::Array<float> lse_, sums_;
  kernels::cuda::Pinned host_;
  std::vector<float> mean_;
  std::vector<std::int32_t> chosen_;
  std::vector<std::byte> workspace_;
};

}  // namespace glimpse::attention::cuda
