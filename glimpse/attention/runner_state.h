// What a Runner keeps between calls. Inside attention only; see runner.h for threads.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "glimpse/attention/runner.h"
#include "glimpse/attention/selection.h"
#include "glimpse/attention/work_list.h"
#include "glimpse/base/buffer.h"
#include "glimpse/kernels/attention.h"

namespace glimpse::attention {

/// Adds the time of its life to a sum; one thread alone, or null.
class Stopwatch {
 public:
  explicit Stopwatch(double* sum) : sum_(sum), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() {
    if (sum_ != nullptr) *sum_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double* sum_;
  std::chrono::steady_clock::time_point start_;
};

/// What one KV head gave a block: the sum over its tokens of the group's mean probability.
struct BlockMass {
  std::int32_t block = 0;
  float mass = 0;
};

/// The set of one prompt tile: what its rows read beside the tile itself.
struct TileSet {
  std::vector<std::int32_t> list;  ///< ascending positions before the tile
  bool everything = true;
};

/// A chunk of a prompt: tiles that select, and sums of the probabilities that a plan observes.
struct PromptWork {
  int tile_tokens = 0;  ///< of sparse prefill; 0: the prompt is read densely
  int tiles = 0;
  std::vector<TileSet> sets;                      ///< [layer, kv_head, tile]
  std::vector<float> pooled;                      ///< [tile, kv_head, tokens], sets per layer only
  std::int64_t observe_from = 0;                  ///< rows at this position and after are observed
  std::vector<float> observed;                    ///< [item, kv_head, tokens] column sums
  std::vector<double> observed_blocks;            ///< [kv_head, blocks] of the layer being run
  std::unique_ptr<std::atomic<int>[]> remaining;  ///< [kv_heads] items of a head, [1] heads of the layer, [tiles] heads
  std::size_t remaining_size = 0;
};

/// One sequence of the batch during a pass.
struct BatchEntry {
  SequenceRows rows;
  std::int64_t tokens = 0;   ///< after the pass's rows: N of the last row
  bool dense = true;         ///< the plan reads everything at this length
  bool sparse = false;       ///< decoding: a head of some layer reads less than every token
  bool ends_prompt = false;  ///< all up to here counts as prompt from now on: indices are made of it
  ReadCounters counters;
  std::vector<kernels::HeadView> views;           ///< [kv_heads] of the layer being run
  std::vector<std::size_t> score_offset;          ///< [kv_heads] floats into `scores`
  std::vector<float> lse;                         ///< [heads] of the layer being run
  std::vector<std::size_t> index_bytes;           ///< [kv_heads] read by searches
  std::vector<double> index_build_s;              ///< [kv_heads] that indices took to build, then the factors
  std::vector<double> audit_s;                    ///< [kv_heads]
  std::vector<std::vector<BlockMass>> heat_feed;  ///< [layer, kv_head] what attention gave each block it read
  std::vector<Coverage> known, audited;           ///< [layer, kv_head] of this pass
  PromptWork prompt;
  std::exception_ptr failure;  ///< what ended this sequence's part of the pass; null while it goes on

  bool learns() const { return rows.kind != PassKind::correct && rows.kind != PassKind::verify; }
  bool feeds() const { return rows.decodes() && rows.plan->feedback == plan::Feedback::probabilities; }
};

/// One KV head of one tile of a prompt.
struct TileOf {
  BatchEntry& entry;
  int layer;
  int head;
  int tile;
};

/// Where a head's rows come from when keys are read at low rank: those of positions below `end` that lie in no outlier
/// chunk are made from `keys`.
struct LowRankHead {
  const kv::LowRankKeys* keys = nullptr;
  std::int64_t end = 0;
  std::int32_t chunk = 1;                  ///< tokens
  std::span<const std::int32_t> outliers;  ///< chunks, ascending
};

/// Pages of one thread in the cache's format, as many as an item needs.
struct RowPages {
  HostBuffer k, v;
  std::vector<kernels::PageId> numbers;
  std::vector<std::int32_t> made;  ///< positions whose keys are made
  std::vector<float> keys;         ///< [made, d]
};

/// Buffers of one thread, kept between steps.
struct ThreadScratch {
  SelectionScratch selection;
  kv::IndexScratch index;
  std::vector<std::byte> prefill;
  std::vector<float> lse;
  std::vector<float> queries;
  std::vector<float> weights;
  std::vector<HeadScores> heads;
  std::vector<float> combined;      ///< [rows, g, d]
  std::vector<float> gathered;      ///< [g + 1, list]
  std::vector<float> audit_scores;  ///< [g, N], [g] log-sum-exps
  std::vector<float> dropped;       ///< [rows, d] that leave a window
  RowPages rows;
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

  WorkList attend_work, select_work;
  std::vector<float> partials;
  std::vector<float> scores;
  std::size_t score_stride = 0;
  std::vector<ThreadScratch> threads;
  std::unique_ptr<std::atomic<int>[]> layer_remaining;  ///< [batch] heads still to be scored, for SetPer::layer
  std::size_t layer_remaining_size = 0;
  std::vector<std::int32_t> evicted;
  std::vector<std::int32_t> missing;
  std::vector<std::int64_t> drafted_steps;  ///< a head's chosen_at during a draft
  std::vector<ScoredUnit> evict_scores;     ///< of those that may go
  std::vector<kv::Mark> marks;
  std::vector<ReadCounters> counters;  ///< [batch], filled by end()
  std::vector<int> heat_readers;

  double seconds = 0;  ///< of thread 0 in select and attend

  std::atomic<int> arrived{0};
  std::mutex failure_mutex;
  std::exception_ptr failure;        ///< of the whole pass
  std::atomic<bool> stopped{false};  ///< `failure` is set: work lists may be half made, and nobody touches them
  bool began = false;

  const plan::Role& role(const BatchEntry& entry, int layer, int head) const {
    return entry.rows.plan->role(layer, head);
  }
  const plan::Selector& selector(const BatchEntry& entry, const plan::Role& role) const {
    return entry.rows.plan->selectors[static_cast<std::size_t>(role.selector)];
  }
  const plan::Retention* retention(const BatchEntry& entry, const plan::Role& role) const {
    return role.retention < 0 ? nullptr : &entry.rows.plan->retentions[static_cast<std::size_t>(role.retention)];
  }
  /// Slot of the entry's first row. What is corrected lies in heads that never freed a token.
  static std::int32_t first_slot(const BatchEntry& entry, const kernels::HeadView& view) {
    if (entry.rows.kind == PassKind::correct) return static_cast<std::int32_t>(entry.rows.position);
    return view.slots - entry.rows.rows;
  }
  /// Query rows of one KV head of a row of the pass.
  const float* head_query(const BatchEntry& entry, const float* q, int row, int head) const {
    return q + (static_cast<std::size_t>(entry.rows.first_row + row) * static_cast<std::size_t>(shape.heads) +
                static_cast<std::size_t>(head) * static_cast<std::size_t>(group)) *
                   static_cast<std::size_t>(shape.head_dim);
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
      stopped.store(true, std::memory_order_relaxed);
    }
  }
  /// Work for one sequence: what it throws ends that sequence's part of the pass and leaves the others alone.
  template <class Work>
  void guarded(BatchEntry& entry, Work&& work) noexcept {
    try {
      work();
    } catch (...) {
      const std::scoped_lock lock(failure_mutex);
      if (!entry.failure) entry.failure = std::current_exception();
    }
  }

  // runner.cc
  bool ends_prompt(const SequenceRows& rows) const;
  void append(const BatchEntry& entry, const RowsToAppend& rows) const;
  void open_entry(BatchEntry& entry, const SequenceRows& rows);
  void size_scratch();
  void silence(float* out);

  // evict.cc: what plans forget, before a step attends
  void evict(BatchEntry& entry);
  void evict_window(BatchEntry& entry, int layer, int head);
  void evict_by_statistic(BatchEntry& entry, int layer, int first_head, int heads);

  // tier.cc: pages that wait
  void recall_sets(int layer);
  void recall_set(BatchEntry& entry, int layer, int head, const plan::Retention& kept);

  // select.cc: what happens before a layer attends
  void build_select(int layer);
  void add_decode_selects(BatchEntry& entry, int index, int layer, std::size_t& score_floats);
  void run_score(const Item& item, const Item* next, int layer, const float* q, int ith);
  void run_search(const Item& item, int layer, const float* q, int ith);
  void grow_index(const Item& item, int layer);
  void select_head(int layer, int batch_index, int head, int ith);
  void select_layer(int layer, int batch_index, int ith);
  void publish(PublishedSet& set, std::size_t list, std::int64_t tokens);

  // low_rank.cc: keys of the prompt from their singular vectors
  /// At the prompt's end, and again where a correction changed the prompt's keys.
  bool wants_factors(const BatchEntry& entry, int layer) const;
  void factor_keys(const Item& item, int layer);
  LowRankHead low_rank_head(BatchEntry& entry, int layer, int head) const;
  void count_low_rank(BatchEntry& entry, int layer, const Unit& unit);
  void run_low_rank(const Item& item, int layer, const float* q, int ith);

  // phases.cc: attending of decode rows
  void build_attend(int layer);
  void add_decode(BatchEntry& entry, int index, int layer);
  void add_streams(BatchEntry& entry, int index, int head, const plan::Role& role);
  void add_lists(BatchEntry& entry, int index, plan::SlotId reader, const PublishedSet& set);
  int add_ranges(const Unit& unit, std::int64_t begin, std::int64_t end, int unit_index);
  kernels::AttendItem kernel_item(const Item& item, const float* q);
  void take_dropped(const BatchEntry& entry, int layer, int head, std::int64_t end, int ith);
  void run_mean_token(const Item& item, int layer, const float* q, int ith);
  void combine_unit(int layer, int unit_index, const float* q, float* out, int ith);

  // prompt.cc: rows of a prompt
  void open_prompt(BatchEntry& entry);
  void fade_heat(BatchEntry& entry) const;
  void open_prompt_layer(BatchEntry& entry, int layer);
  void add_prompt(BatchEntry& entry, int index, int layer);
  void add_rows(const BatchEntry& entry, int index);
  bool splits_keys(const BatchEntry& entry) const;
  static bool verifies_few(const BatchEntry& entry);
  /// True when a prompt's end, or a correction, makes or mends indices of the layer.
  bool grows_indices(const BatchEntry& entry, int layer) const;
  void add_few_rows(const BatchEntry& entry, int index);
  void run_range(const Item& item, const float* q, int ith);
  void run_verify(const Item& item, const float* q, int ith);
  void combine_few_rows(const Unit& unit, int layer, const float* q, float* out, int ith);
  kernels::PrefillItem prompt_item(const Item& item, const float* q) const;
  void run_prompt(const Item& item, int layer, const float* q, float* out, int ith);
  void observe_few_rows(const Unit& unit, int layer, const float* q, int ith);
  void observe_rows(const Item& item, int layer, kernels::PrefillItem work, int ith);
  void take_observed(BatchEntry& entry, int layer, int head);

  // prompt_tiles.cc: tiles of a prompt that choose what later layers read
  TileSet& tile_set(BatchEntry& entry, int layer, int head, int tile);
  std::atomic<int>& tile_remaining(PromptWork& prompt, int tile) const;
  /// True when the selecting heads of a layer choose in the attend phase, behind what they attend to.
  bool tiles_follow(const BatchEntry& entry, int layer) const;
  void open_tiles(BatchEntry& entry, int layer);
  void add_tiles(BatchEntry& entry, int index, int layer);
  std::span<float> open_tile(const TileOf& at, ThreadScratch& thread);
  void close_tile(const TileOf& at, ThreadScratch& thread);
  void run_tile(const Item& item, int layer, const float* q, int ith);
  void choose_behind_tile(const Item& item, int layer, const kernels::PrefillItem& work, int ith);

  // coverage.cc
  static double captured_mass(const HeadScores& head, std::span<const std::int32_t> list, ThreadScratch& thread);
  void note_coverage(BatchEntry& entry, plan::SlotId at, const HeadScores& head, const PublishedSet& set,
                     ThreadScratch& thread);
  void add_audit(BatchEntry& entry, int index);
  void run_audit(const Item& item, int layer, const float* q, int ith);
  static void end_coverage(BatchEntry& entry);

  // feedback.cc
  void feed(BatchEntry& entry, int layer, const Unit& unit, int ith);
  void end_feedback(BatchEntry& entry);

  // observe.cc
  void observe(int layer, const float* q, const std::function<void(const HeadRecord&)>& see);
};

}  // namespace glimpse::attention
