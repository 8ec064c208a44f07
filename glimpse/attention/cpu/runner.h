// Runs plans: for every layer of a forward pass, the phases append, select and attend over all sequences of the
// batch, whatever their plans and budgets. Owns the work list and scratch; borrows the cache.
//
// Threads. begin() and end() are called by one thread. Between them every thread of the executor's pool calls, for
// each layer in order, append, select (where needs_select says so) and attend, with a barrier between any two calls
// (ggml's between graph nodes). Nothing in the phases throws. What fails for one sequence ends that sequence's part of
// the pass and is kept for failure(); what fails for all ends the pass and is thrown by end().
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/attention/cpu/runner_shape.h"
#include "glimpse/attention/records.h"
#include "glimpse/kv/cache.h"
#include "glimpse/plan/plan.h"

namespace glimpse::attention {

/// Rows [first, first + rows) of batch entry `batch_index`, counted from that entry's first row.
struct RowsToAppend {
  int layer = 0, kv_head = 0;
  int batch_index = 0;
  int first = 0, rows = 1;
  const float* k = nullptr;  ///< [rows, d], `stride` floats from row to row
  const float* v = nullptr;
  std::size_t stride = 0;
};

struct Pass;

class Runner {
 public:
  Runner(const RunnerShape& shape, kv::Cache& cache);
  ~Runner();

  /// Appends slots for all rows (all or none: throws UserError when the cache is full, and nothing has changed) and
  /// evicts what plans forget; what fails from there on leaves began() true.
  void begin(std::span<const SequenceRows> batch);

  /// True when some sequence must select before it attends in this layer: its own set, or through an index.
  bool needs_select(int layer) const;

  /// True when attending in this layer leaves more than its output: what is observed, indices, low-rank keys.
  bool needs_attend(int layer) const;

  /// Writes K and V of some rows of one sequence and KV head; distinct rows from any threads.
  void append(const RowsToAppend& rows);
  /// Every thread calls it once after its last append of the layer; the last to come prepares what follows. True for
  /// that one, while the pass goes on.
  bool appended(int layer, int nth);
  /// Rows of the pass up to the last one of a sequence that has not failed. The thread for which appended() was true.
  int rows_wanted() const;

  /// q: [rows, H, d] after RoPE. Thread `ith` of `nth`.
  void select(int layer, const float* q, int ith, int nth);
  /// out: [rows, H, d].
  void attend(int layer, const float* q, float* out, int ith, int nth);

  /// Between two nodes of the graph: every sequence of the batch was stopped, so the rest of the pass may be left out.
  bool stopped() const;
  /// When it was left out, before end(): every sequence fails as Stopped.
  void abandon();

  /// Tells on_head what heads did. Counters of each sequence of the batch, in order, valid until the next begin().
  /// Throws what a phase could not.
  std::span<const ReadCounters> end();
  /// What ended entry `index`'s part of the last pass; null when it is whole. Of one that failed, the cache holds the
  /// pass's rows, not all of them written, and the state may have taken in part of them.
  std::exception_ptr failure(std::size_t index) const;
  /// True when begin() gave slots to a pass that did not come to its end: caches and states may have changed.
  bool began() const;

  /// Wall time that one of the threads spent selecting and attending, since the runner was made. Seconds.
  double seconds() const;

  /// Called by end() for every (sequence, layer, KV head) of decode rows, layer by layer; empty turns it off. Set
  /// before begin().
  std::function<void(const HeadRecord&)> on_head;

 private:
  std::unique_ptr<Pass> pass_;
};

}  // namespace glimpse::attention
