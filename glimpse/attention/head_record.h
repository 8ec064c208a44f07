// What one head of a decoding row read and handed on, said in the words of records.h: the same for every device. One
// thread at a time for a `space`.
#pragma once

#include <cstdint>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/attention/records.h"

namespace glimpse::attention {

/// The sets that a head's program names; null: none.
struct HeadSets {
  const PublishedSet* read = nullptr;
  const PublishedSet* published = nullptr;
};

/// All but the batch index, the coverage and the query. Its lists lead into the sets and into `space`.
HeadRecord describe_head(const kv::Cache& cache, const SequenceRows& rows, plan::SlotId at, const HeadSets& sets,
                         std::vector<std::int32_t>& space);

/// The sets that the program of a row names for a head, by a function from slot to set. `dense`: the row reads
/// everything.
template <class SetAt>
HeadSets sets_of(const SequenceRows& rows, plan::SlotId at, bool dense, const SetAt& set_at) {
  HeadSets sets;
  if (dense) return sets;
  const HeadOp& op = rows.program->head(at.layer, at.head);
  if (op.select >= 0) sets.published = set_at(rows.program->select(at.layer, at.head).writes);
  if (op.reads == HeadOp::Reads::set) sets.read = set_at(op.set);
  return sets;
}

}  // namespace glimpse::attention
