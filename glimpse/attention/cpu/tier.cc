#include "glimpse/attention/cpu/tier.h"

namespace glimpse::attention {
namespace {

void recall_set(Pass& pass, BatchEntry& entry, int layer, int head) {
  SequenceState& state = *entry.rows.state;
  auto& kept_steps = state.chosen_at[state.head(layer, head)];
  // A draft leaves no trace.
  const bool drafts = entry.rows.kind == PassKind::draft;
  if (drafts) pass.drafted_steps = kept_steps;
  const kv::SequenceId sequence = entry.rows.sequence;
  pass.tier.begin(*pass.cache, entry.rows, {layer, head}, drafts ? pass.drafted_steps : kept_steps);
  const int set = entry.set_of({layer, head});
  for (int i = set; i < set + entry.lists_of({layer, head}); ++i) {
    pass.sets.everything(i) ? pass.tier.take_everything() : pass.tier.take(pass.sets.list(i));
  }
  pass.tier.end();
  if (!pass.tier.evicted().empty()) pass.cache->spill(sequence, pass.tier.evicted());
  pass.cache->recall(sequence, pass.tier.missing());
  pass.tier.count(entry.counters);
}

}  // namespace

void recall_sets(Pass& pass, int layer) {
  for (BatchEntry& entry : pass.entries()) {
    if (!entry.rows.decodes() || entry.dense) continue;
    for (int head = 0; head < pass.shape.kv_heads && !entry.failure; ++head) {
      if (!entry.head(layer, head).has_tier()) continue;
      pass.guarded(entry, [&] { recall_set(pass, entry, layer, head); });
    }
  }
}

}  // namespace glimpse::attention
