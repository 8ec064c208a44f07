// A forward pass of a model over a batch of sequences. The executor owns weights in the layout it computes with, its
// threads, graphs and activations; it borrows the model's mapping and the cache. One thread at a time calls forward().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "glimpse/attention/runner.h"
#include "glimpse/kv/cache.h"
#include "glimpse/model/model.h"

namespace glimpse::exec {

struct StepBatch {
  std::span<const std::int32_t> tokens;  ///< [rows], in the order of `sequences`
  std::span<const attention::SequenceRows> sequences;
  std::span<const std::int32_t> output_rows;  ///< ascending rows whose logits are wanted; may be empty
};

struct StepResult {
  std::span<const float> logits;                      ///< [output_rows, vocabulary], valid until the next forward
  std::span<const attention::ReadCounters> counters;  ///< [sequences]
};

class Executor {
 public:
  virtual ~Executor() = default;
  /// Throws UserError when the cache is full (nothing has changed then).
  virtual StepResult forward(const StepBatch& batch) = 0;
  /// Wall time of attention in all passes so far, as one thread saw it. Seconds.
  virtual double attention_seconds() const = 0;
  /// Time of audits in all passes so far, over all threads. Seconds.
  virtual double audit_seconds() const = 0;
  /// What attention did, head by head (see attention::HeadRecord); empty turns it off.
  virtual void set_observer(std::function<void(const attention::HeadRecord&)> observer) = 0;
};

struct CpuOptions {
  int threads = 1;
};
/// ggml's matrix products with our attention in one graph. Copies or repacks weights; throws UserError when memory is
/// short.
std::unique_ptr<Executor> make_cpu_executor(const model::Model& model, kv::Cache& cache, const CpuOptions& options);

}  // namespace glimpse::exec
