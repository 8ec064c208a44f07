// The batched operations as outputs of a work list: which splits the rows of a table have on the CPU. Whoever has
// threads drains the list: Operations its workers, the runner of attention those of ggml. One thread at a time.
#pragma once

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/kernels/cpu/work_list.h"
#include "glimpse/kernels/ops.h"

namespace glimpse::kernels {

inline const HeadView& view_of(const KvTable<Place::host>& cache, const RowTable<Place::host>& rows, RowHead at) {
  const auto sequence = static_cast<std::size_t>(rows.sequence[static_cast<std::size_t>(at.row)]);
  return cache.views[sequence * static_cast<std::size_t>(cache.kv_heads) + static_cast<std::size_t>(at.head)];
}

/// Slots of a head that a row sees.
inline std::int32_t seen(const KvTable<Place::host>& cache, const RowTable<Place::host>& rows, RowHead at) {
  return view_of(cache, rows, at).slots - rows.behind[static_cast<std::size_t>(at.row)] + 1;
}

/// The number of a KV head's first query head in [R, H].
inline std::size_t first_query(const KvTable<Place::host>& cache, int group, RowHead at) {
  return (static_cast<std::size_t>(at.row) * static_cast<std::size_t>(cache.kv_heads) +
          static_cast<std::size_t>(at.head)) *
         static_cast<std::size_t>(group);
}

/// All query heads of a KV head that reads every slot that the row sees.
inline Output output_of(const KvTable<Place::host>& cache, const RowTable<Place::host>& rows, int group, RowHead at) {
  Output output;
  output.view = &view_of(cache, rows, at);
  output.query = first_query(cache, group, at);
  output.queries = group;
  output.entries = seen(cache, rows, at);
  return output;
}

/// Adds what the named heads score, with its splits. `as` makes of each output, and the KV head that it belongs to,
/// what the list holds.
template <class Of, class As>
void add_scored(const ScoreOp<Place::host>& op, WorkList<Of>& work, const As& as) {
  for (int i = 0; i < op.count; ++i) {
    const RowHead at = op.heads[static_cast<std::size_t>(i)];
    Output output = output_of(op.cache, op.rows, op.group, at);
    check(static_cast<std::size_t>(output.entries) <= op.out.stride, "a row of scores has room for all slots");
    output.first_score = output.query * op.out.stride;
    work.add_range(work.add(as(output, at.head)), 0, output.entries);
  }
}

/// What the query heads of a KV head that read the same read; `query`: that one alone has a set of its own, -1: all.
inline Output attended(const AttendOp<Place::host>& op, RowHead at, int query) {
  const Read& read = op.reads[static_cast<std::size_t>(at.row) * static_cast<std::size_t>(op.cache.kv_heads) +
                              static_cast<std::size_t>(at.head)];
  Output output = output_of(op.cache, op.rows, op.group, at);
  if (query >= 0) {
    output.query += static_cast<std::size_t>(query);
    output.queries = 1;
  }
  const bool no_window = read.kind == Read::Kind::window && read.sink + read.local == 0;
  if (read.kind == Read::Kind::nothing || no_window) output.entries = 0;
  if (read.kind == Read::Kind::sets) {
    const auto set = static_cast<std::size_t>(read.set + std::max(query, 0));
    if (op.sets.count[set] != kEverything) {
      output.list = op.sets.slots.raw() + set * static_cast<std::size_t>(op.sets.capacity);
      output.entries = op.sets.count[set];
    }
  }
  output.keeps_scores = read.scores != 0;
  return output;
}

/// Adds the outputs of a row, KV head by KV head, with their splits. `as`: as in add_scored.
template <class Of, class As>
void add_attended(const AttendOp<Place::host>& op, int row, WorkList<Of>& work, const As& as) {
  const int first = work.outputs();
  for (int head = 0; head < op.cache.kv_heads; ++head) {
    const Read& read = op.reads[static_cast<std::size_t>(row) * static_cast<std::size_t>(op.cache.kv_heads) +
                                static_cast<std::size_t>(head)];
    const bool apart = read.kind == Read::Kind::sets && read.per_query != 0;
    for (int query = apart ? 0 : -1; query < (apart ? op.group : 0); ++query) {
      const Output output = attended(op, {row, head}, query);
      const int number = work.add(as(output, head));
      if (read.kind != Read::Kind::window || read.sink + read.local > output.entries) continue;
      work.add_range(number, 0, read.sink);
      work.add_range(number, output.entries - read.local, output.entries);
    }
  }
  work.add_whole(first);
}

}  // namespace glimpse::kernels
