#include "glimpse/attention/cuda/group_run.h"

#include <algorithm>

namespace glimpse::attention::cuda {
namespace {

void make_sets(const GroupSource& from, const GroupCall& call, const StagedLayer& place) {
  if (place.score_count > 0) {
    from.operations.score({call.cache, call.rows, call.q, call.group, call.scale,
                           from.staging.at<kernels::RowHead>(place.scores), place.score_count, call.scores});
  }
  if (place.search_count > 0) {
    from.operations.search({call.cache, call.rows, call.q, call.group, call.scale, from.summaries.table(),
                            from.staging.at<kernels::Search>(place.searches), place.search_count,
                            from.tables.sizes().most_blocks, call.scores});
  }
  if (place.unit_count > 0) {
    const kernels::RotationPairs pairs = from.units.turns().pairs;
    kernels::cuda::gate_queries(from.stream, {.q = call.q,
                                              .kv_heads = from.kv_heads,
                                              .group = call.group,
                                              .head_dim = from.head_dim,
                                              .angles = from.gate_angles,
                                              .turned = pairs.dims,
                                              .neox = pairs.neox,
                                              .gates = from.staging.at<kernels::cuda::GateQuery>(place.gates),
                                              .count = place.gate_count,
                                              .out = from.space.gate_queries().pointer()});
    kernels::cuda::search_units(from.stream, {.cache = call.cache,
                                              .q = call.q,
                                              .group = call.group,
                                              .searches = from.staging.at<kernels::cuda::UnitSearch>(place.units),
                                              .count = place.unit_count,
                                              .most = from.units.most(),
                                              .gate_queries = from.space.gate_queries().constant(),
                                              .out = call.scores});
  }
  if (place.tree_count > 0) {
    kernels::cuda::search_trees(from.stream, {.cache = call.cache,
                                              .rows = call.rows,
                                              .q = call.q,
                                              .group = call.group,
                                              .scale = call.scale,
                                              .searches = from.staging.at<kernels::cuda::TreeSearch>(place.trees),
                                              .count = place.tree_count,
                                              .most = std::max(from.trees.most(), from.units.most_chunks()),
                                              .sets = call.sets,
                                              .opened = from.space.opened(),
                                              .scores = call.scores});
  }
  if (place.choice_count > 0) {
    from.operations.select({call.cache, call.rows, call.group, call.scores,
                            from.staging.at<kernels::Choice>(place.choices), place.choice_count, call.sets,
                            place.weighs_means});
  }
  from.heats.choose(call, place.parts, from.operations);
}

/// Attention where rows are put together. What sets capture is a matter of the keys that were given: where somebody
/// asks, those are read too, and then nothing waits.
void attend_made(const GroupSource& from, const GroupCall& call, const StagedLayer& place, int layer) {
  const kernels::KvTable<kernels::Place::device> made = from.views.made(layer);
  const kernels::RotationPairs pairs = from.low_rank.pairs();
  kernels::cuda::make_rows(from.stream, {.cache = call.cache,
                                         .rows = call.rows,
                                         .sets = call.sets,
                                         .made = made,
                                         .of = from.staging.at<kernels::cuda::MadeSet>(place.made),
                                         .count = place.made_count,
                                         .most = from.tables.sizes().capacity,
                                         .angles = from.low_rank.angles(),
                                         .turned = pairs.dims,
                                         .neox = pairs.neox,
                                         .pieces = from.waiting,
                                         .piece_slots = from.piece_slots});
  if (call.lse != nullptr) {
    from.operations.attend({call.cache, call.rows, call.q, call.group, call.scale,
                            from.staging.at<kernels::Read>(place.cached_reads), call.sets, call.out, call.lse});
  }
  from.operations.attend({made, call.rows, call.q, call.group, call.scale, call.reads, call.sets, call.out, nullptr,
                          call.narrow, call.scores});
}

}  // namespace

void run_group(const GroupSource& from, const GroupCall& call, const StagedLayer& place, int layer, float* audit_lse) {
  if (!place.late) make_sets(from, call, place);
  if (place.made_count > 0) {
    attend_made(from, call, place, layer);
  } else {
    from.operations.attend({call.cache, call.rows, call.q, call.group, call.scale, call.reads, call.sets, call.out,
                            call.lse, call.narrow, call.scores});
  }
  if (place.late) make_sets(from, call, place);
  kernels::cuda::add_mean_tokens(
      from.stream, {call.cache, call.rows, call.q, call.group, call.scale,
                    from.staging.at<kernels::cuda::MeanToken>(place.means), place.mean_count, call.lse, call.out});
  from.heats.feed(call, place.parts);
  if (audit_lse == nullptr) return;
  from.operations.score({call.cache,
                         call.rows,
                         call.q,
                         call.group,
                         call.scale,
                         from.staging.at<kernels::RowHead>(place.audits),
                         place.audit_count,
                         {call.scores.scores, audit_lse, call.scores.stride}});
}

}  // namespace glimpse::attention::cuda
