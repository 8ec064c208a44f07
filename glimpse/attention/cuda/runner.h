// Runs plans on a GPU: for every layer of a forward pass summarise, score, search, select and attend over all
// sequences of the batch, and column_sums for those that forget by it, as the operations of kernels/ops.h on one
// stream. The host works out tables before the pass
// and reads the counts of sets after it; nothing in between waits. Owns tables, scores and sets; borrows the cache,
// whose planes are the device's, and the stream.
//
// The order of a pass: begin(), then what it added to the staging is sent, then prepare(); for each layer in order the
// caller writes its rows of K and V and calls layer(); finish(); and end() when the stream has passed. One thread at a
// time. Errors: begin() throws UserError when the cache is full, and nothing has changed then; what the device refuses
// comes from kernels/cuda.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "glimpse/attention/cuda/audits.h"
#include "glimpse/attention/cuda/feedback.h"
#include "glimpse/attention/cuda/heats.h"
#include "glimpse/attention/cuda/host_sets.h"
#include "glimpse/attention/cuda/low_rank.h"
#include "glimpse/attention/cuda/made_rows.h"
#include "glimpse/attention/cuda/mean_tokens.h"
#include "glimpse/attention/cuda/page_tables.h"
#include "glimpse/attention/cuda/pass_records.h"
#include "glimpse/attention/cuda/pass_tables.h"
#include "glimpse/attention/cuda/summaries.h"
#include "glimpse/attention/cuda/tier.h"
#include "glimpse/attention/cuda/tiles.h"
#include "glimpse/attention/cuda/trees.h"
#include "glimpse/attention/cuda/units.h"
#include "glimpse/attention/records.h"
#include "glimpse/kernels/cuda/staging.h"

namespace glimpse::attention::cuda {

struct RunnerShape {
  int layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int threads = 1;                        ///< of the host, for indices that it builds
  kernels::Rotation* rotation = nullptr;  ///< needed by plans that read keys of low rank
};

class Runner {
 public:
  Runner(const RunnerShape& shape, kv::Cache& cache, kernels::cuda::Stream& stream);

  /// Gives slots to all rows and adds the pass's tables to `staging`, which is used until finish(). Frees what streams
  /// leave behind.
  void begin(std::span<const SequenceRows> batch, kernels::cuda::Staging& staging);
  /// Brings page tables up to date. Not a part of a graph: what it does differs from pass to pass.
  void prepare();

  /// Where a layer's K and V of the pass's rows go, before layer().
  struct OwnRows {
    kernels::KvTable<kernels::Place::device> cache;
    kernels::RowTable<kernels::Place::device> rows;
  };
  OwnRows own_rows(int layer) const;
  /// q: [R, H, d] after RoPE; out: [R, H, d]; narrow: `out` as bf16.
  struct LayerRows {
    kernels::Pointer<const float, kernels::Place::device> q;
    kernels::Pointer<float, kernels::Place::device> out;
    kernels::Pointer<std::uint16_t, kernels::Place::device> narrow;
  };
  /// False where it leaves `narrow` to its caller.
  bool layer(int layer, const LayerRows& rows);
  /// Queues what end() reads.
  void finish();
  /// Counters of each sequence of the batch, in order, valid until the next begin().
  std::span<const ReadCounters> end();
  /// After end(): what ended the pass for sequences alone; empty: nothing.
  const std::vector<std::exception_ptr>& failures() const { return failures_; }
  /// Sees what each head of a decoding row did, from end(), layer by layer; empty: nobody watches.
  PassRecords::See observer;
  /// True when begin() gave slots to a pass that did not come to its end.
  bool began() const { return began_; }

  /// What the launches of the pass depend on: two passes of equal keys are queued alike, so one graph does for both.
  /// Empty for a pass that is not worth a graph: one with long chunks of prompts.
  const std::vector<std::int64_t>& key() const { return key_; }

 private:
  using Place = kernels::Place;
  /// Where a group's part of a layer lies in the staging.
  struct LayerPlace {
    std::size_t scores = 0, searches = 0, trees = 0, units = 0, gates = 0, made = 0, choices = 0, reads = 0,
                cached_reads = 0, means = 0, audits = 0;
    int score_count = 0, search_count = 0, tree_count = 0, unit_count = 0, gate_count = 0, made_count = 0,
        choice_count = 0, mean_count = 0, audit_count = 0;
    bool weighs_means = false, late = false;  ///< late: see GroupLayer
    PartsPlace parts;
  };
  struct RangePlace {
    std::size_t at = 0;
    int count = 0;
  };

  void add_ranges();
  void point_to_indices(std::span<const SequenceRows> batch, const RowGroup& group, int layer);
  void attend_made(const GroupCall& call, const LayerPlace& place, int layer);
  void run_group(const GroupCall& call, const LayerPlace& place, int layer, float* audit_lse);
  void make_sets(const GroupCall& call, const LayerPlace& place);
  std::int64_t unit_bytes(const PassEntry& entry, const SelectOp& select) const;
  void count_made(const PassEntry& entry, int layer, int head, ReadCounters& counters) const;
  bool makes_sets_late(std::size_t entry, int layer) const;
  void make_space();
  std::int64_t tree_bytes(const PassEntry& entry, const SelectOp& select) const;
  void count(std::size_t entry, ReadCounters& counters) const;
  std::int64_t read_slots(const PassEntry& entry, int layer, int head, bool& sparse) const;
  static bool has_mean_token(const PassEntry& entry, int layer, int head);
  kernels::KvTable<Place::device> cache_of(int layer) const;
  kernels::KvTable<Place::device> table_at(std::size_t place, int layer) const;
  void add_made_views();
  bool move_pages(const PassEntry& entry, ReadCounters& counters);
  /// Of the pass's sets, and behind them of the clusters that searches of trees opened; after the stream has passed.
  const std::int32_t* set_counts() const { return reinterpret_cast<const std::int32_t*>(host_counts_.raw()); }

  RunnerShape shape_;
  kv::Cache& cache_;
  kernels::cuda::Stream& stream_;
  std::unique_ptr<kernels::Operations<Place::device>> operations_;
  PageTables pages_;
  Summaries summaries_;
  Feedback feedback_;
  Heats heats_;
  IndexBuilder builder_;
  Trees trees_;
  Units units_;
  LowRank low_rank_;
  MadeRows made_rows_;
  MeanTokens mean_tokens_;
  Tiles tiles_;
  Audits audits_;
  PassRecords records_;
  HostSets host_sets_;
  Tier tier_;
  PassTables tables_;
  kernels::cuda::Staging* staging_ = nullptr;
  GroupLayer group_layer_;
  std::vector<LayerPlace> places_;        ///< [groups, layers]
  std::vector<RangePlace> range_places_;  ///< [layers]
  std::vector<kernels::PageRange> ranges_;
  std::vector<kernels::HeadView> views_, of_sequence_;
  std::size_t views_place_ = 0, made_views_place_ = 0, waiting_place_ = 0, sequence_place_ = 0, behind_place_ = 0,
              pieces_place_ = 0, watched_place_ = 0, writes_place_ = 0, tree_writes_place_ = 0, unit_writes_place_ = 0,
              angles_place_ = 0;
  std::vector<std::int64_t> lengths_, key_;
  kernels::cuda::Array<float> scores_, lse_;
  kernels::cuda::Array<float> gate_queries_;  ///< of a layer
  kernels::cuda::Array<std::int32_t> sets_, counts_;
  kernels::cuda::Pinned host_counts_;
  std::int64_t moves_ = 0;  ///< of the arrays above
  std::vector<kv::Mark> marks_;
  ForgetSpace forget_;
  std::vector<ReadCounters> counters_;
  std::vector<std::exception_ptr> failures_;
  bool began_ = false;
};

}  // namespace glimpse::attention::cuda
