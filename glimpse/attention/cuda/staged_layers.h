// What each layer does for each group of a pass's rows, in the staging: worked out before the pass, read by the
// operations that are queued.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/attention/cuda/heats.h"
#include "glimpse/attention/cuda/low_rank.h"
#include "glimpse/attention/cuda/mean_tokens.h"
#include "glimpse/attention/cuda/pass_tables.h"
#include "glimpse/attention/cuda/trees.h"
#include "glimpse/attention/cuda/units.h"
#include "glimpse/kernels/cuda/staging.h"

namespace glimpse::attention::cuda {

/// Where a group's part of a layer lies: each list of GroupLayer, and how many it holds.
struct StagedLayer {
  std::size_t scores = 0, searches = 0, trees = 0, units = 0, gates = 0, made = 0, choices = 0, reads = 0,
              cached_reads = 0, means = 0, audits = 0;
  int score_count = 0, search_count = 0, tree_count = 0, unit_count = 0, gate_count = 0, made_count = 0,
      choice_count = 0, mean_count = 0, audit_count = 0;
  bool weighs_means = false, late = false;  ///< late: see GroupLayer
  PartsPlace parts;
};

/// Where the layers of a pass's groups lie. A plain value.
struct StagedPlaces {
  std::vector<StagedLayer> of_layers;  ///< [groups, layers]
  std::size_t layers = 0;

  const StagedLayer& at(std::size_t group, int layer) const {
    return of_layers[group * layers + static_cast<std::size_t>(layer)];
  }
  /// True where an entry's sets of a layer are made behind attention, from scores that it leaves.
  bool makes_sets_late(const PassTables& tables, std::size_t entry, int layer) const;
};

/// Owned by a runner, and borrows from it what says where indices lie. One thread at a time.
class StagedLayers {
 public:
  struct Indices {
    const Trees& trees;
    const Units& units;
    const LowRank& low_rank;
    const MeanTokens& mean_tokens;
    Heats& heats;
  };
  explicit StagedLayers(const Indices& indices) : indices_(indices) {}

  /// For a pass whose tables are made: adds all layers to `staging`, to `key` what launches depend on, and says in
  /// `places` where they lie.
  void add(const PassTables& tables, int layers, kernels::cuda::Staging& staging, std::vector<std::int64_t>& key,
           StagedPlaces& places);

 private:
  void point_to_indices(const PassTables& tables, const RowGroup& group, int layer);

  Indices indices_;
  GroupLayer group_layer_;
};

}  // namespace glimpse::attention::cuda
