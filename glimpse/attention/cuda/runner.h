// Runs plans on a GPU: for every layer of a forward pass summarise, score, search, select and attend over all
// sequences of the batch, and column_sums for those that forget by it, as the operations of kernels/ops.h on one
// stream. The host works out tables before the pass
// and reads the counts of sets after it; nothing in between waits. Owns tables, scores and sets; borrows the cache,
// whose planes are the device's, and the stream.
//
// The order of a pass: begin(), then what it added to the staging is sent, then prepare(); for each layer in order the
// caller writes its rows of K and V and calls layer(); finish(); and end() when the stream has passed. A pass may
// begin, and all its layers be queued, before the one before it has ended, where both leave nothing but counts
// (leaves_nothing()); its finish() comes behind the other's end(). One thread at a time. Errors: begin() throws
// UserError when the cache is full, and nothing has changed then; what the device refuses comes from kernels/cuda.
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
#include "glimpse/attention/cuda/pass_space.h"
#include "glimpse/attention/cuda/pass_tables.h"
#include "glimpse/attention/cuda/pass_views.h"
#include "glimpse/attention/cuda/program_facts.h"
#include "glimpse/attention/cuda/staged_layers.h"
#include "glimpse/attention/cuda/summaries.h"
#include "glimpse/attention/cuda/tier.h"
#include "glimpse/attention/cuda/tiles.h"
#include "glimpse/attention/cuda/trees.h"
#include "glimpse/attention/cuda/units.h"
#include "glimpse/attention/cuda/widened.h"
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
  /// The last pass that began does not come to its end.
  void drop_last();
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
  /// Of the oldest pass that has not ended: counters of each sequence of its batch, in order, valid until the next
  /// end().
  std::span<const ReadCounters> end();
  /// After end(): what ended the pass for sequences alone; empty: nothing.
  const std::vector<std::exception_ptr>& failures() const { return failures_; }
  /// Sees what each head of a decoding row did, from end(), layer by layer; empty: nobody watches.
  PassRecords::See on_head;
  /// True when begin() gave slots to a pass that did not come to its end.
  bool began() const { return began_; }
  /// True where a pass of such rows of the program leaves nothing on the host that the next one needs.
  bool leaves_nothing(const Program& program, PassKind kind, std::int64_t tokens);

  /// What the launches of the pass depend on: two passes of equal keys are queued alike, so one graph does for both.
  /// Empty for a pass that is not worth a graph: one with long chunks of prompts.
  const std::vector<std::int64_t>& key() const { return key_; }

 private:
  using Place = kernels::Place;
  void make(std::span<const SequenceRows> batch, kernels::cuda::Staging& staging);
  bool may_overlap() const;
  void follow(std::span<const SequenceRows> batch, std::span<const ProgramFacts* const> facts);

  RunnerShape shape_;
  kv::Cache& cache_;
  kernels::cuda::Stream& stream_;
  std::unique_ptr<kernels::Operations<Place::device>> operations_;
  ProgramsFacts programs_;
  PageTables pages_;
  Summaries summaries_;
  Feedback feedback_;
  Heats heats_;
  IndexBuilder builder_;
  Trees trees_;
  Units units_;
  LowRank low_rank_;
  MadeRows made_rows_;
  Widened widened_;
  MeanTokens mean_tokens_;
  Tiles tiles_;
  Audits audits_;
  PassRecords records_;
  HostSets host_sets_;
  Tier tier_;
  PassTables tables_, tables_before_;  ///< of the last pass that began, and of the one before where it has not ended
  PassViews views_;
  PassSpace space_;
  StagedLayers layers_;
  StagedPlaces places_, places_before_;  ///< likewise
  int open_ = 0;                         ///< passes that began and have not ended
  kernels::cuda::Staging* staging_ = nullptr;
  std::size_t waiting_place_ = 0, sequence_place_ = 0, behind_place_ = 0, pieces_place_ = 0, watched_place_ = 0,
              writes_place_ = 0, verified_place_ = 0, tree_writes_place_ = 0, unit_writes_place_ = 0, angles_place_ = 0;
  std::vector<std::int64_t> lengths_, key_;
  std::vector<const SearchedTrees*> searched_;  ///< [batch]
  std::vector<kv::Mark> marks_;
  ForgetSpace forget_;
  std::vector<ReadCounters> counters_;
  std::vector<std::exception_ptr> failures_;
  bool began_ = false;
};

}  // namespace glimpse::attention::cuda
