// What a Runner keeps between calls. Inside attention only; see runner.h for threads.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "glimpse/attention/runner.h"
#include "glimpse/attention/selection.h"
#include "glimpse/attention/work_list.h"
#include "glimpse/kernels/attention.h"

namespace glimpse::attention {

/// One sequence of the batch during a pass.
struct BatchEntry {
  SequenceRows rows;
  std::int64_t tokens = 0;  ///< after the pass's rows: N of the last row
  bool dense = true;        ///< the plan reads everything at this length
  ReadCounters counters;
  std::vector<kernels::HeadView> views;   ///< [kv_heads] of the layer being run
  std::vector<std::size_t> score_offset;  ///< [kv_heads] floats into `scores`
  std::vector<float> lse;                 ///< [heads] of the layer being run
};

struct Runner::State {
  State(const RunnerShape& shape, kv::Cache& cache);

  RunnerShape shape;
  kv::Cache* cache;
  int group;
  float scale;

  std::vector<BatchEntry> batch;
  std::size_t batch_size = 0;  ///< entries in use; the rest keep their buffers
  std::span<BatchEntry> entries() { return {batch.data(), batch_size}; }

  WorkList attend_work, score_work;
  std::vector<float> partials;
  std::vector<float> scores;
  std::size_t score_stride = 0;
  std::vector<std::vector<std::byte>> prefill_scratch;  ///< [threads]
  std::vector<SelectionScratch> selection;              ///< [threads]
  std::vector<std::vector<float>> lse_scratch;          ///< [threads]
  std::vector<HeadScores> layer_heads;                  ///< [threads, kv_heads]
  std::unique_ptr<std::atomic<int>[]> layer_remaining;  ///< [batch] heads still to combine, for SetPer::layer
  std::size_t layer_remaining_size = 0;
  std::vector<std::int32_t> evicted;
  std::vector<kv::Mark> marks;
  std::vector<ReadCounters> counters;  ///< [batch], filled by end()

  std::atomic<int> arrived{0};
  std::mutex failure_mutex;
  std::exception_ptr failure;

  const plan::Role& role(const BatchEntry& entry, int layer, int head) const {
    return entry.rows.plan->role(layer, head);
  }
  const plan::Selector& selector(const BatchEntry& entry, const plan::Role& role) const {
    return entry.rows.plan->selectors[static_cast<std::size_t>(role.selector)];
  }
  /// True for the last of nth threads to call it since the last time it was true.
  bool last_to_arrive(int nth) {
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 != nth) return false;
    arrived.store(0, std::memory_order_relaxed);
    return true;
  }
  template <class Work>
  void guarded(Work&& work) noexcept {
    try {
      work();
    } catch (...) {
      const std::scoped_lock lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  }

  // runner.cc
  void evict(BatchEntry& entry);
  void size_scratch();

  // phases.cc
  void build_scores(int layer);
  void build_attend(int layer);
  void add_decode(BatchEntry& entry, int index, int layer);
  void add_streams(BatchEntry& entry, int index, int head, const plan::Role& role);
  void add_lists(BatchEntry& entry, int index, int head, const PublishedSet& set);
  void add_prefill(BatchEntry& entry, int index);
  int add_ranges(const Unit& unit, const std::int32_t* list, std::int64_t begin, std::int64_t end, int unit_index);
  kernels::AttendItem kernel_item(const Item& item, const float* q);
  void run_prefill(const Item& item, const float* q, float* out, int ith);
  void combine_unit(int layer, const Unit& unit, float* out, int ith);
  void select_head(int layer, int batch_index, int head, int ith);
  void select_layer(int layer, int batch_index, int ith);
  void publish(PublishedSet& set, std::size_t list, std::int64_t tokens);
  void observe(int layer, const float* q, const std::function<void(const HeadRecord&)>& observer);
};

}  // namespace glimpse::attention
