// A pass that runs: its sequences, the work of the phase that is being run, and the buffers that a Runner keeps
// between passes. Data that the rooms beside it work on (decode, prompt, tiles, select, feed, tier, audit,
// low_rank, head_records, read_counts). Inside attention/cpu only; see runner.h for threads.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "glimpse/attention/choose.h"
#include "glimpse/attention/cpu/items.h"
#include "glimpse/attention/cpu/pass_sets.h"
#include "glimpse/attention/cpu/runner_shape.h"
#include "glimpse/attention/forget.h"
#include "glimpse/attention/records.h"
#include "glimpse/attention/tier.h"
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

inline constexpr auto kNoScores = static_cast<std::size_t>(-1);

/// One sequence of the batch during a pass.
struct BatchEntry {
  SequenceRows rows;
  std::int64_t tokens = 0;   ///< after the pass's rows: N of the last row
  bool dense = true;         ///< the plan reads everything at this length
  int first_set = 0;         ///< decoding, and not dense: its sets are numbered from here
  bool ends_prompt = false;  ///< all up to here counts as prompt from now on: indices are made of it
  ReadCounters counters;
  std::span<kernels::HeadView> views;             ///< [kv_heads] of the layer being run
  std::size_t first_score = kNoScores;            ///< [H, score_stride] floats into `scores`, where it has any
  std::vector<float> lse;                         ///< [heads] of the layer being run
  std::vector<std::size_t> index_bytes;           ///< [kv_heads] read by searches
  std::vector<double> index_build_s;              ///< [kv_heads] that indices took to build, then the factors
  std::vector<double> audit_s;                    ///< [kv_heads]
  std::vector<std::vector<BlockMass>> heat_feed;  ///< [layer, kv_head] what attention gave each block it read
  std::vector<Coverage> known, audited;           ///< [layer, kv_head] of this pass
  PromptWork prompt;
  std::exception_ptr failure;  ///< what ended this sequence's part of the pass; null while it goes on

  const LayerProgram& layer(int layer) const { return rows.program->layer(layer); }
  const HeadOp& head(int layer, int head) const { return rows.program->head(layer, head); }
  /// The first set of a slot, and how many it has: one, or one for each query head.
  int set_of(plan::SlotId slot) const { return first_set + rows.program->select(slot.layer, slot.head).first_set; }
  int lists_of(plan::SlotId slot) const { return rows.program->select(slot.layer, slot.head).lists; }
  bool learns() const { return rows.kind != PassKind::correct && rows.kind != PassKind::verify; }
  bool feeds() const { return rows.decodes() && rows.program->feeds(); }
  bool stopped() const { return rows.stop != nullptr && rows.stop->load(std::memory_order_relaxed); }
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
  std::vector<float> lse, partial_lse;
  std::vector<std::int32_t> set;
  std::vector<float> queries;
  std::vector<float> weights;
  std::vector<HeadScores> heads;
  std::vector<float> combined;      ///< [rows, g, d]
  std::vector<float> gathered;      ///< [g + 1, list]
  std::vector<float> audit_scores;  ///< [g, N], [g] log-sum-exps
  std::vector<float> dropped;       ///< [rows, d] that leave a window
  RowPages rows;
};

/// The tables of a pass that attention's operations read (kernels/tables.h).
struct RowTables {
  int kv_heads = 0;
  std::vector<kernels::HeadView> views;        ///< [batch, kv_heads] of the layer being run
  std::vector<std::int32_t> sequence, behind;  ///< [rows]
  std::vector<kernels::Read> reads;            ///< [layers, rows, kv_heads] of decoding rows; empty: no row decodes

  /// [rows, kv_heads]
  kernels::Read* reads_of(int layer) {
    return reads.data() + static_cast<std::size_t>(layer) * sequence.size() * static_cast<std::size_t>(kv_heads);
  }
  kernels::Read& read(int layer, int row, int head) { return reads_of(layer)[row * kv_heads + head]; }
  kernels::KvTable<kernels::Place::host> cache(const kernels::KvFormat& format) const {
    return {format, views.data(), static_cast<int>(views.size()) / kv_heads, kv_heads};
  }
  kernels::RowTable<kernels::Place::host> rows() const {
    return {sequence.data(), behind.data(), static_cast<int>(sequence.size())};
  }
  /// One row as a table.
  kernels::RowTable<kernels::Place::host> row(int row) const { return {sequence.data() + row, behind.data() + row, 1}; }
};

/// One thread's call of a phase.
struct Call {
  int layer = 0;
  const float* q = nullptr;  ///< [rows, H, d] after RoPE
  float* out = nullptr;      ///< [rows, H, d]; attending alone
  int ith = 0, nth = 1;
};

struct Pass {
  Pass(const RunnerShape& shape, kv::Cache& cache);

  RunnerShape shape;
  kv::Cache* cache;
  int group;
  float scale;

  std::vector<BatchEntry> batch;
  std::size_t batch_size = 0;  ///< entries in use; the rest keep their buffers
  std::span<BatchEntry> entries() { return {batch.data(), batch_size}; }
  BatchEntry& entry(int index) { return batch[static_cast<std::size_t>(index)]; }
  ThreadScratch& thread(int ith) { return threads[static_cast<std::size_t>(ith)]; }

  RowTables tables;
  kernels::WorkList<HeadOutput> work;  ///< of the phase that is being run
  kernels::TakeList<Item> items;       ///< and what comes before its splits
  PassSets sets;
  HostBuffer scores;             ///< of rows that decode, each [H, score_stride]: memory that no head reaches is free
  std::size_t score_floats = 0;  ///< of them, that rows of the phase have
  std::size_t score_stride = 0;
  std::vector<ThreadScratch> threads;
  std::unique_ptr<std::atomic<int>[]> layer_remaining;  ///< [batch] heads still to be scored, for SetPer::layer
  std::size_t layer_remaining_size = 0;
  TierStep tier;
  std::vector<std::int64_t> drafted_steps;  ///< a head's chosen_at during a draft
  ForgetSpace forget;
  std::vector<kv::Mark> marks;
  std::vector<ReadCounters> counters;    ///< [batch], filled by Runner::end()
  std::vector<float> queries;            ///< [layers, batch, H, d] of decoding rows, where somebody watches
  std::vector<kernels::RowHead> scored;  ///< heads of an entry
  std::vector<int> heat_readers;
  std::vector<std::int64_t> live;  ///< [layers, kv_heads] tokens that the heads of an entry keep

  double seconds = 0;  ///< of thread 0 in select and attend

  std::atomic<int> arrived{0};
  std::mutex failure_mutex;
  std::exception_ptr failure;        ///< of the whole pass
  std::atomic<bool> stopped{false};  ///< `failure` is set: work lists may be half made, and nobody touches them
  bool began = false;

  /// Slot of the entry's first row.
  std::int32_t first_slot(const BatchEntry& entry, const kernels::HeadView& view) const {
    return view.slots - tables.behind[static_cast<std::size_t>(entry.rows.first_row)];
  }
  void open_work() {
    work.clear();
    items.clear();
    score_floats = 0;
    for (BatchEntry& entry : entries()) entry.first_score = kNoScores;
  }
  /// All query heads of a KV head of the entry's first row, reading every slot that it sees.
  HeadOutput output_of(int index, int head);
  /// The rows of a prompt item before everything they see; `out` and `lse` are still to be said.
  kernels::PrefillItem prompt_item(const Item& item, const float* q);
  /// Gives an output its place among its row's scores.
  void keep_scores(HeadOutput& output) {
    BatchEntry& of = entry(output.batch);
    const auto width = static_cast<std::size_t>(shape.heads);
    if (of.first_score == kNoScores) {
      of.first_score = score_floats;
      score_floats += width * score_stride;
    }
    output.first_score =
        of.first_score + (output.query - static_cast<std::size_t>(of.rows.first_row) * width) * score_stride;
  }
  /// A row's scores as a table of one row, when the phase is open.
  kernels::ScoreTable<kernels::Place::host> scores_of(BatchEntry& entry) {
    return {scores.as<float>().data() + entry.first_score, entry.lse.data(), score_stride};
  }
  /// Opens the phase to all threads. Partial results have `dim` values.
  void seal_work(int dim) {
    if (const std::size_t bytes = score_floats * sizeof(float); scores.size() < bytes) {
      scores = {};
      scores = HostBuffer(bytes + bytes / 4);
    }
    work.seal(dim);
    items.seal();
  }
  kernels::Reading reading(const Call& call) {
    return {cache->shape().format, call.q, scale, scores.as<float>().data(), score_stride};
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
  template <class Body>
  void guarded(Body&& body) noexcept {
    try {
      body();
    } catch (...) {
      const std::scoped_lock lock(failure_mutex);
      if (!failure) failure = std::current_exception();
      stopped.store(true, std::memory_order_relaxed);
    }
  }
  /// Work for one sequence: what it throws ends that sequence's part of the pass and leaves the others alone.
  template <class Body>
  void guarded(BatchEntry& entry, Body&& body) noexcept {
    try {
      body();
    } catch (...) {
      const std::scoped_lock lock(failure_mutex);
      if (!entry.failure) entry.failure = std::current_exception();
    }
  }
};

}  // namespace glimpse::attention
