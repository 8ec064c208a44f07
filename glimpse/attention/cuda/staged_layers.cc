#include "glimpse/attention/cuda/staged_layers.h"

#include <algorithm>

#include "glimpse/base/size.h"

namespace glimpse::attention::cuda {

void StagedLayers::add(const PassTables& tables, int layers, kernels::cuda::Staging& staging,
                       std::vector<std::int64_t>& key, StagedPlaces& places) {
  places.of_layers.clear();
  places.layers = size(layers);
  const auto add = [&](const auto& list, std::size_t& place, int& count) {
    place = staging.add(list);
    count = static_cast<int>(list.size());
  };
  GroupLayer& of = group_layer_;
  for (const RowGroup& group : tables.groups()) {
    for (int layer = 0; layer < layers; ++layer) {
      tables.layer_of(group, layer, of);
      point_to_indices(tables, group, layer);
      indices_.mean_tokens.add(tables, group, layer, of.means);
      StagedLayer to;
      add(of.scores, to.scores, to.score_count);
      add(of.searches, to.searches, to.search_count);
      add(of.trees, to.trees, to.tree_count);
      add(of.units, to.units, to.unit_count);
      add(of.gates, to.gates, to.gate_count);
      add(of.made, to.made, to.made_count);
      add(of.choices, to.choices, to.choice_count);
      to.reads = staging.add(of.reads);
      to.cached_reads = staging.add(of.cached_reads);
      add(of.means, to.means, to.mean_count);
      add(of.audits, to.audits, to.audit_count);
      to.weighs_means = std::any_of(of.choices.begin(), of.choices.end(), [](const kernels::Choice& choice) {
        return choice.pooling == kernels::Pooling::probability_of_mean;
      });
      to.late = of.late;
      to.parts = indices_.heats.add(of);
      places.of_layers.push_back(to);
      key.insert(key.end(), {group.row, group.rows, to.score_count, to.search_count, to.tree_count, to.unit_count,
                             to.gate_count, to.made_count, to.choice_count, to.audit_count, to.parts.union_count,
                             to.parts.rank_count, to.parts.heat_count, to.weighs_means, to.mean_count, to.late});
    }
  }
}

/// Says which trees and units a layer of a group searches, by which gates, and whose factors it reads.
void StagedLayers::point_to_indices(const PassTables& tables, const RowGroup& group, int layer) {
  const auto entry_of = [&](int row) -> const PassEntry& {
    return tables.entries()[size(tables.sequence_of_row()[size(group.row + row)])];
  };
  const auto rows_of = [&](int row) -> const SequenceRows& { return entry_of(row).rows; };
  for (kernels::cuda::TreeSearch& search : group_layer_.trees) {
    if (search.scored != 0) {
      point_to(indices_.units.copy(rows_of(search.row), layer, search.head), search);
      continue;
    }
    const PassEntry& entry = entry_of(search.row);
    search.tree = entry.trees->copies[entry.rows.state->head(layer, search.head)].tree;
  }
  for (kernels::cuda::UnitSearch& search : group_layer_.units)
    point_to(indices_.units.copy(rows_of(search.row), layer, search.head), search);
  for (kernels::cuda::GateQuery& gate : group_layer_.gates) {
    const int gate_row = gate.row;
    gate = indices_.units.gate_query(rows_of(gate_row), layer, gate.head);
    gate.row = gate_row;
  }
  for (kernels::cuda::MadeSet& made : group_layer_.made) {
    point_to(indices_.units.copy(rows_of(made.row), layer, made.head), made);
    indices_.low_rank.point(rows_of(made.row), layer, made);
  }
}

bool StagedPlaces::makes_sets_late(const PassTables& tables, std::size_t entry, int layer) const {
  const auto groups = tables.groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (entry >= groups[g].first_entry && entry < groups[g].first_entry + groups[g].entries) return at(g, layer).late;
  }
  return false;
}

}  // namespace glimpse::attention::cuda
