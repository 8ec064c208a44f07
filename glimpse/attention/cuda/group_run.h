// What a layer does for a group of rows, behind the appending: sets are made and attended to, in the order that the
// group's layer says. Borrows all for the call; queues launches on the stream alone. One thread at a time.
#pragma once

#include "glimpse/attention/cuda/heats.h"
#include "glimpse/attention/cuda/low_rank.h"
#include "glimpse/attention/cuda/pass_space.h"
#include "glimpse/attention/cuda/pass_tables.h"
#include "glimpse/attention/cuda/pass_views.h"
#include "glimpse/attention/cuda/staged_layers.h"
#include "glimpse/attention/cuda/summaries.h"
#include "glimpse/attention/cuda/trees.h"
#include "glimpse/attention/cuda/units.h"
#include "glimpse/kernels/cuda/staging.h"

namespace glimpse::attention::cuda {

/// Of the runner and its pass, what the groups of a layer read.
struct GroupSource {
  kernels::cuda::Stream& stream;
  kernels::Operations<kernels::Place::device>& operations;
  const kernels::cuda::Staging& staging;
  const PassTables& tables;
  const PassViews& views;
  const Summaries& summaries;
  const Trees& trees;
  const Units& units;
  const LowRank& low_rank;
  Heats& heats;
  PassSpace& space;
  kernels::Pointer<std::byte* const, kernels::Place::device> waiting;  ///< pieces of the memory of pages that wait
  int piece_slots = 1;
  kernels::Pointer<const float, kernels::Place::device> gate_angles;  ///< GateTurns::angles
  int kv_heads = 0, head_dim = 0;
};

/// `audit_lse` [R, H]: where the log-sum-exps of the heads go that are audited; null: none is.
void run_group(const GroupSource& from, const GroupCall& call, const StagedLayer& place, int layer, float* audit_lse);

}  // namespace glimpse::attention::cuda
