// Heat on a device (EvoSparse, section 3.1). The host keeps it, as on the CPU, so that drafts, forks and sessions are
// the same on both: it goes to the device with a pass's tables, chooses there, and what attention gave to each block
// comes back with the logits. Nothing waits inside a pass. Where a pass begins before the host has what the one before
// it gave, the device adds that itself, with the host's bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/attention/cuda/pass_tables.h"
#include "glimpse/kernels/cuda/parts.h"
#include "glimpse/kernels/cuda/staging.h"

namespace glimpse::attention::cuda {

/// What a layer of a group of rows works on, as every operation of it is told.
struct GroupCall {
  template <class T>
  using Device = kernels::Pointer<T, kernels::Place::device>;
  kernels::KvTable<kernels::Place::device> cache;
  kernels::RowTable<kernels::Place::device> rows;
  Device<const float> q;
  int group = 1;
  float scale = 1;
  kernels::ScoreTable<kernels::Place::device> scores;
  kernels::SetTable<kernels::Place::device> sets;
  Device<const kernels::Read> reads;
  Device<float> out;
  Device<std::uint16_t> narrow;  ///< `out` as bf16 too, or null
  float* lse = nullptr;          ///< [R, H] of what is read, or null
};

/// Where the parts of GroupLayer lie in the staging.
struct PartsPlace {
  std::size_t unions = 0, queries = 0, ranks = 0, united = 0, heats = 0;
  int union_count = 0, rank_count = 0, heat_count = 0;
};

/// Owned by a runner; borrows cache and stream. One thread at a time.
class Heats {
 public:
  Heats(const kv::Cache& cache, kernels::cuda::Stream& stream) : cache_(cache), stream_(stream) {}

  /// For a pass whose tables are made: heat of prompts' rows fades, and what chooses is added to the staging. `behind`:
  /// the tables of a pass that still runs, which has its sequences in the same order, or null.
  void begin(const PassTables& tables, const PassTables* behind, std::span<const std::int64_t> lengths, int heads,
             kernels::cuda::Staging& staging);
  PartsPlace add(const GroupLayer& layer);
  /// What launches depend on.
  void add_to(std::vector<std::int64_t>& key) const;
  /// [R, H] for the log-sum-exps of the layer that runs; null where none are wanted.
  float* lse() const { return tables_->sizes().heats > 0 ? lse_.pointer().raw() : nullptr; }

  /// Queued before the first layer, behind a group's scores, behind its attention, and behind a layer's.
  void start();
  void choose(const GroupCall& call, const PartsPlace& place, kernels::Operations<kernels::Place::device>& operations);
  void feed(const GroupCall& call, const PartsPlace& place);
  void observe(int layer, const GroupCall& call, kernels::Operations<kernels::Place::device>& operations);
  /// Queues the copy of what flows back.
  void finish();
  /// When the stream has passed a pass: takes it into the states.
  void end(const PassTables& tables) const;

 private:
  void find_observed(const PassEntry& entry, std::size_t number, std::int64_t length);
  void step_behind(const PassTables& behind);
  void make_space(int heads);
  void make_gains(std::size_t values);
  void take(const PassEntry& entry, std::size_t stride) const;

  const kv::Cache& cache_;
  kernels::cuda::Stream& stream_;
  const PassTables* tables_ = nullptr;
  kernels::cuda::Staging* staging_ = nullptr;
  std::vector<float> heat_;                                  ///< [heats, stride]
  std::vector<kernels::cuda::HeatStep> steps_;               ///< [heats] behind a pass that runs; else empty
  std::size_t gains_stride_ = 0;                             ///< of that pass
  std::vector<float> shift_;                                 ///< [R] of observed rows: log of what they count
  std::vector<kernels::PromptRows> pieces_;                  ///< observed
  std::vector<std::vector<kernels::cuda::HeatPiece>> fold_;  ///< [layers][pieces]
  std::size_t column_stride_ = 0;
  std::size_t heat_place_ = 0, steps_place_ = 0, shift_place_ = 0, pieces_place_ = 0;
  std::vector<std::size_t> fold_places_;  ///< [layers]
  int heads_ = 0, moves_ = 0;
  kernels::cuda::Array<float> lse_, shifted_, columns_, values_, stepped_;
  kernels::cuda::Array<std::uint8_t> kept_;
  kernels::cuda::Array<std::uint64_t> ranked_;
  kernels::cuda::Array<double> sums_, gains_;
  kernels::cuda::Array<std::int32_t> readers_;
  kernels::cuda::Pinned host_;
};

}  // namespace glimpse::attention::cuda
