// Runs plans: for every layer of a forward pass, the phases append, select and attend over all sequences of the
// batch, whatever their plans and budgets. Owns the work lists, partial results and scratch; borrows the cache.
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
#include <optional>
#include <span>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/kernels/rotation.h"
#include "glimpse/kv/cache.h"
#include "glimpse/plan/plan.h"

namespace glimpse::attention {

/// Softmax mass that sets captured, from 0 to 1 each: of a KV head's set the mean over the group's queries.
struct Coverage {
  double sum = 0;
  std::int64_t count = 0;  ///< sets
  double least = 1;
  void add(double mass);
  Coverage& operator+=(const Coverage& other);
  double mean() const { return count == 0 ? 1 : sum / static_cast<double>(count); }
};

/// Rows of K and V that the work lists read, and what dense attention would have read, in decode rows alone.
struct ReadCounters {
  std::int64_t k_rows = 0, v_rows = 0;
  std::int64_t dense_k_rows = 0, dense_v_rows = 0;
  std::int64_t index_bytes = 0;     ///< of key indices, read instead of K
  std::int64_t low_rank_rows = 0;   ///< of k_rows: made from factors, not read from the cache
  std::int64_t low_rank_bytes = 0;  ///< of the factors
  // A host tier: pages that sets needed and that came back, or were there; the most that one head kept resident.
  std::int64_t recalled_pages = 0, recalled_bytes = 0, resident_hits = 0;
  std::optional<std::int64_t> resident_tokens;     ///< none: no head had one
  std::int64_t dense_steps = 0, sparse_steps = 0;  ///< sparse: some head read less than every token
  Coverage coverage;                               ///< of sets chosen from exact scores of all tokens
  Coverage audited;                                ///< of every head that forgot nothing, in audited steps
  std::int64_t audits = 0;                         ///< such steps
  double audit_s = 0;                              ///< what they took, of all threads together
  double index_build_s = 0;  ///< what building indices and factors took, of all threads together; prompts too
  ReadCounters& operator+=(const ReadCounters& other);
};

/// What one head of one sequence did in one decode step; lists are valid during the call.
struct HeadRecord {
  int batch_index = 0;  ///< of SequenceRows in begin()
  int layer = 0, kv_head = 0;
  std::int64_t position = 0;
  const plan::Role* role = nullptr;
  std::int64_t budget = 0;                                ///< tokens allowed
  bool reads_all = false;                                 ///< no list: every token up to `position`
  std::span<const std::int32_t> tokens;                   ///< positions read (union over query heads)
  std::span<const std::vector<std::int32_t>> query_sets;  ///< SetPer::query_head: one each
  const PublishedSet* published = nullptr;                ///< null: nothing handed on
  std::optional<double> coverage;                         ///< softmax mass of what was read; audited steps alone
  const float* query = nullptr;                           ///< [g, d], after RoPE
};

/// Rows [first, first + rows) of batch entry `batch_index`, counted from that entry's first row.
struct RowsToAppend {
  int layer = 0, kv_head = 0;
  int batch_index = 0;
  int first = 0, rows = 1;
  const float* k = nullptr;  ///< [rows, d], `stride` floats from row to row
  const float* v = nullptr;
  std::size_t stride = 0;
};

struct RunnerShape {
  int layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int threads = 1;
  kernels::Rotation* rotation = nullptr;  ///< needed by plans that read keys of low rank
};

class Runner {
 public:
  Runner(const RunnerShape& shape, kv::Cache& cache);
  ~Runner();

  /// Throws UserError when the plan asks for what this back end does not have yet, by name.
  static void require_supported(const plan::Plan& plan);

  /// Appends slots for all rows (all or none: throws UserError when the cache is full, and nothing has changed) and
  /// evicts what plans forget; what fails from there on leaves began() true.
  void begin(std::span<const SequenceRows> batch);

  /// True when some sequence must select before it attends in this layer: its own set, or through an index.
  bool needs_select(int layer) const;

  /// True when attending in this layer leaves more than its output: what is observed, indices, low-rank keys.
  bool needs_attend(int layer) const;

  /// Writes K and V of some rows of one sequence and KV head; distinct rows from any threads.
  void append(const RowsToAppend& rows);
  /// Every thread calls it once after its last append of the layer; the last to come prepares what follows.
  void appended(int layer, int nth);

  /// q: [rows, H, d] after RoPE. Thread `ith` of `nth`.
  void select(int layer, const float* q, int ith, int nth);
  /// out: [rows, H, d].
  void attend(int layer, const float* q, float* out, int ith, int nth);

  /// Counters of each sequence of the batch, in order, valid until the next begin(). Throws what a phase could not.
  std::span<const ReadCounters> end();
  /// What ended entry `index`'s part of the last pass; null when it is whole. Of one that failed, the cache holds the
  /// pass's rows, not all of them written, and the state may have taken in part of them.
  std::exception_ptr failure(std::size_t index) const;
  /// True when begin() gave slots to a pass that did not come to its end: caches and states may have changed.
  bool began() const;

  /// Wall time that one of the threads spent selecting and attending, since the runner was made. Seconds.
  double seconds() const;

  /// Called for every (sequence, layer, KV head) of decode rows by one thread at a time; empty turns it off.
  std::function<void(const HeadRecord&)> observer;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace glimpse::attention
