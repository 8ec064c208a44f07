// What a thread does with a split of a work list: attends to its entries, or scores them. Any thread.
#pragma once

#include "glimpse/kernels/cpu/work_list.h"

namespace glimpse::kernels {

/// What all outputs of a list have in common.
struct Reading {
  KvFormat format;
  const float* q = nullptr;  ///< [R, H, d] after RoPE
  float scale = 1;
  float* scores = nullptr;
  std::size_t score_stride = 0;
};

/// A split as kernels take it, but for its partial result and for what comes next.
template <class Item>
Item item_of(const Reading& reading, const Output& output, const Split& split) {
  Item item;
  item.head = output.view;
  item.query = reading.q + output.query * static_cast<std::size_t>(reading.format.dim);
  item.group = output.queries;
  item.scale = reading.scale;
  item.begin = split.begin;
  item.end = split.end;
  item.scores = reading.scores + output.first_score;
  item.score_stride = reading.score_stride;
  return item;
}
inline AttendItem attend_item(const Reading& reading, const Output& output, const Split& split) {
  AttendItem item = item_of<AttendItem>(reading, output, split);
  item.list = output.list;
  if (!output.keeps_scores) item.scores = nullptr;
  return item;
}

/// Attends to the entries of a split. `next`: as WorkList::drain says it.
template <class Of>
void attend_split(const Reading& reading, WorkList<Of>& work, const Split& split, const Split* next) {
  AttendItem item = attend_item(reading, work.output(split), split);
  AttendItem following;
  item.partial = work.partial(work.output(split), split.partial);
  if (next != nullptr) {
    following = attend_item(reading, work.output(*next), *next);
    item.next = &following;
  }
  attend(reading.format, item);
}

/// Scores the entries of a split: K alone. Its partial result is their log-sum-exps (WorkList::seal(0)). `queries`:
/// [output.queries, d] in place of the reading's, or null.
template <class Of>
void score_split(const Reading& reading, WorkList<Of>& work, const Split& split, const Split* next,
                 const float* queries) {
  const Output& output = work.output(split);
  ScoreItem item = item_of<ScoreItem>(reading, output, split);
  ScoreItem following;
  if (queries != nullptr) item.query = queries;
  if (next != nullptr) {
    following = item_of<ScoreItem>(reading, work.output(*next), *next);
    item.next = &following;
  }
  score(reading.format, item);
  if (!output.sums) return;
  float* const lse = work.partial(output, split.partial);  // while the scores are near
  for (int j = 0; j < output.queries; ++j) {
    const float* row = item.scores + static_cast<std::size_t>(j) * item.score_stride;
    lse[j] = log_sum_exp({row + split.begin, static_cast<std::size_t>(split.end - split.begin)});
  }
}

}  // namespace glimpse::kernels
