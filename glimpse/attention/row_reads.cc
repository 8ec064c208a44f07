#include "glimpse/attention/row_reads.h"

#include <algorithm>
#include <span>

#include "glimpse/attention/give_slots.h"

namespace glimpse::attention {

using kernels::Read;

RowReads::RowReads(const SequenceRows& rows, const std::int32_t* counts, ReadCounters& counters)
    : rows_(rows), counts_(counts), counters_(counters), tokens_(rows.position + rows.rows) {}

std::int64_t RowReads::add(const HeadReads& of) {
  std::int64_t slots = of.slots;
  bool all = of.slots >= tokens_;
  int means = 0;
  if (of.read.kind == Read::Kind::window) {
    slots = std::min<std::int64_t>(of.read.sink + of.read.local, of.slots);
    all = false;
    if (of.compensates) means = of.heads;
  } else if (of.read.kind == Read::Kind::sets) {
    const int lists = of.read.per_query != 0 ? rows_.program->shape().group() : 1;
    const std::span<const std::int32_t> counts(counts_ + of.read.set, static_cast<std::size_t>(lists));
    const bool everything =
        std::all_of(counts.begin(), counts.end(), [](std::int32_t count) { return count == kernels::kEverything; });
    if (!everything) {  // else query heads read it together
      slots = 0;
      for (const std::int32_t count : counts) slots += count == kernels::kEverything ? of.slots : count;
      all = false;
    }
  }
  sparse_ |= !all;
  counters_.k_rows += of.heads * slots + means;
  counters_.v_rows += of.heads * slots + means;
  return slots;
}

void RowReads::end() {
  const plan::ModelShape& shape = rows_.program->shape();
  const std::int64_t dense = std::int64_t{shape.layers} * shape.kv_heads * tokens_;
  counters_.dense_k_rows += dense;
  counters_.dense_v_rows += dense;
  if (sparse_) {
    counters_.sparse_steps = 1;
  } else {
    counters_.add_dense_step(dense_reason(rows_));
  }
}

}  // namespace glimpse::attention
