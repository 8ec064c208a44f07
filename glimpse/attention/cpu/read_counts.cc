#include "glimpse/attention/cpu/read_counts.h"

#include <algorithm>
#include <numeric>

#include "glimpse/attention/cpu/low_rank.h"
#include "glimpse/attention/row_reads.h"

namespace glimpse::attention {
namespace {

/// Scores of all keys are a pass of their own over K.
void count_scores(BatchEntry& entry) {
  for (int layer = 0; layer < entry.rows.program->shape().layers; ++layer) {
    for (const SelectOp& select : entry.layer(layer).selects) {
      if (select.from == SelectOp::From::scores) entry.counters.k_rows += select.scored_heads() * entry.tokens;
    }
  }
}

}  // namespace

void count_reads(Pass& pass, BatchEntry& entry) {
  pass.cache->live_tokens(entry.rows.sequence, pass.live);
  if (!entry.rows.decodes()) {
    const std::int64_t live = std::accumulate(pass.live.begin(), pass.live.end(), std::int64_t{0});
    entry.counters.k_rows += live;
    entry.counters.v_rows += live;
    return;
  }
  RowReads reads(entry.rows, pass.sets.table().count.raw(), entry.counters);
  std::size_t at = 0;
  for (int layer = 0; layer < pass.shape.layers; ++layer) {
    for (int head = 0; head < pass.shape.kv_heads; ++head) {
      const kernels::Read& read = pass.tables.read(layer, entry.rows.first_row, head);
      reads.add({read, pass.live[at++], 1, entry.head(layer, head).compensates()});
      if (makes_keys(entry, {layer, head}, read)) count_low_rank(pass, entry, {layer, head}, read);
    }
  }
  if (!entry.dense) count_scores(entry);
  reads.end();
}

}  // namespace glimpse::attention
