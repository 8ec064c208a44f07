// Attending of decode rows: the work list of a layer over all heads and sequences, and what follows each unit.
#include <algorithm>
#include <cmath>

#include "glimpse/attention/runner_state.h"
#include "glimpse/base/error.h"
#include "glimpse/kernels/index.h"

namespace glimpse::attention {
namespace {

using plan::RoleKind;
using plan::SetPer;

constexpr std::int64_t kSplit = kernels::kSplitTokens;

/// The slot of a position in a head that gives back whole pages only (a stream): those before the gap stay in place.
std::int64_t stream_slot(const kernels::HeadView& view, std::int64_t tokens, std::int64_t sink, std::int64_t position) {
  const std::int64_t page = kernels::kPageTokens;
  const std::int64_t gap_begin = (sink + page - 1) / page * page;
  return position < gap_begin ? position : position - (tokens - view.slots);
}

}  // namespace

/// Adds items over [begin, end) to a unit; returns the number of partial results.
int Runner::State::add_ranges(const Unit& unit, std::int64_t begin, std::int64_t end, int unit_index) {
  int parts = 0;
  for (std::int64_t at = begin; at < end; at += kSplit, ++parts) {
    attend_work.add({Item::Kind::attend, unit_index, unit.batch, unit.head, static_cast<std::int32_t>(at),
                     static_cast<std::int32_t>(std::min(end, at + kSplit)), unit.list, unit.partials + parts});
  }
  return parts;
}

void Runner::State::build_attend(int layer) {
  attend_work.clear();
  for (std::size_t b = 0; b < batch_size; ++b) {
    if (!batch[b].rows.decodes() && !batch[b].failure) add_prompt(batch[b], static_cast<int>(b), layer);
  }
  for (std::size_t b = 0; b < batch_size; ++b) {
    BatchEntry& entry = batch[b];
    if (!entry.rows.decodes() || entry.failure) continue;
    int selecting = 0;
    for (int head = 0; head < shape.kv_heads && !entry.dense; ++head) {
      const plan::Role& head_role = role(entry, layer, head);
      if (head_role.kind != RoleKind::select || head_role.attends_set) continue;
      selecting += !plan::is_index(selector(entry, head_role).terms.front().source);
    }
    layer_remaining[b].store(selecting, std::memory_order_relaxed);
    add_decode(entry, static_cast<int>(b), layer);
    if (entry.rows.audit) add_audit(entry, static_cast<int>(b));
  }
  std::size_t floats = 0;
  std::size_t score_floats = 0;
  for (std::size_t u = 0; u < attend_work.unit_count(); ++u) {
    Unit& unit = attend_work.unit(static_cast<int>(u));
    unit.first_partial = floats;
    floats += static_cast<std::size_t>(unit.partials) * kernels::partial_floats(unit.group, shape.head_dim);
    BatchEntry& entry = batch[static_cast<std::size_t>(unit.batch)];
    if (unit.prompt_rows > 0) continue;
    unit.feeds = entry.feeds();
    unit.keeps_scores = unit.feeds || unit.selects;
    if (!unit.keeps_scores) continue;
    unit.first_score = score_floats;
    if (unit.selects) entry.score_offset[static_cast<std::size_t>(unit.head)] = score_floats;
    score_floats += static_cast<std::size_t>(unit.group) * score_stride;
  }
  if (scores.size() < score_floats) scores.resize(score_floats);
  if (partials.size() < floats) partials.resize(floats + floats / 4);
  attend_work.seal();
}

void Runner::State::add_decode(BatchEntry& entry, int index, int layer) {
  SequenceState& state = *entry.rows.state;
  // Dense heads first, by token range over all of them: the order in which the cache lies in memory.
  const int first_unit = static_cast<int>(attend_work.unit_count());
  std::int64_t most_slots = 0;
  for (int head = 0; head < shape.kv_heads; ++head) {
    entry.counters.dense_k_rows += entry.tokens;
    entry.counters.dense_v_rows += entry.tokens;
    const plan::Role& head_role = role(entry, layer, head);
    const bool selects = !entry.dense && head_role.kind == RoleKind::select;
    const bool reads_all =
        entry.dense || head_role.kind == RoleKind::dense || (selects && !head_role.attends_set) ||
        (selects && state.sets.at({layer, selector(entry, head_role).per == SetPer::layer ? 0 : head}).everything) ||
        (head_role.kind == RoleKind::reuse && state.sets.at(head_role.reads).everything);
    if (!reads_all) continue;
    const std::int64_t slots = entry.views[static_cast<std::size_t>(head)].slots;
    Unit unit{index, head, -1, group, 0, split_count(slots)};
    unit.entries = static_cast<std::int32_t>(slots);
    unit.selects =
        selects && !head_role.attends_set && !plan::is_index(selector(entry, head_role).terms.front().source);
    attend_work.add_unit(unit);
    const std::int64_t live = cache->live_tokens(entry.rows.sequence, layer, head);
    entry.sparse |= live < entry.tokens;
    entry.counters.k_rows += live;
    entry.counters.v_rows += live;
    most_slots = std::max(most_slots, slots);
  }
  const int last_unit = static_cast<int>(attend_work.unit_count());
  for (std::int64_t at = 0; at < most_slots; at += kSplit) {
    for (int u = first_unit; u < last_unit; ++u) {
      const Unit& unit = attend_work.unit(u);
      const std::int64_t slots = entry.views[static_cast<std::size_t>(unit.head)].slots;
      if (at >= slots) continue;
      attend_work.add({Item::Kind::attend, u, index, unit.head, static_cast<std::int32_t>(at),
                       static_cast<std::int32_t>(std::min(slots, at + kSplit)), nullptr,
                       static_cast<int>(at / kSplit)});
    }
  }
  if (entry.dense) return;
  for (int head = 0; head < shape.kv_heads; ++head) {
    const plan::Role& head_role = role(entry, layer, head);
    if (head_role.kind == RoleKind::stream) {
      add_streams(entry, index, head, head_role);
      continue;
    }
    if (head_role.kind == RoleKind::select && head_role.attends_set) {
      const PublishedSet& own = state.sets.at({layer, selector(entry, head_role).per == SetPer::layer ? 0 : head});
      if (!own.everything) add_lists(entry, index, {layer, head}, own);
    } else if (head_role.kind == RoleKind::reuse) {
      const PublishedSet& set = state.sets.at(head_role.reads);
      if (!set.everything) add_lists(entry, index, {layer, head}, set);
    }
  }
}

void Runner::State::add_streams(BatchEntry& entry, int index, int head, const plan::Role& head_role) {
  const plan::Selector& window = selector(entry, head_role);
  const std::int64_t slots = entry.views[static_cast<std::size_t>(head)].slots;
  const std::int64_t local = plan::window_tokens(window, entry.tokens);
  Unit unit{index, head, -1, group, 0, 0};
  unit.entries = static_cast<std::int32_t>(slots);
  const int u = attend_work.add_unit(unit);
  if (window.sink + local >= entry.tokens) {
    entry.sparse |= slots < entry.tokens;
    unit.partials += add_ranges(unit, 0, slots, u);
    entry.counters.k_rows += slots;
    entry.counters.v_rows += slots;
  } else {
    entry.sparse = true;
    unit.partials += add_ranges(unit, 0, window.sink, u);
    unit.partials += add_ranges(unit, slots - local, slots, u);
    entry.counters.k_rows += window.sink + local;
    entry.counters.v_rows += window.sink + local;
    const plan::Retention* kept = retention(entry, head_role);
    if (kept != nullptr && kept->compensates) {
      attend_work.add({Item::Kind::mean_token, u, index, head, 0, 0, nullptr, unit.partials});
      ++unit.partials;
      ++entry.counters.k_rows;
      ++entry.counters.v_rows;
    }
  }
  attend_work.unit(u).partials = unit.partials;
}

void Runner::State::add_lists(BatchEntry& entry, int index, plan::SlotId reader, const PublishedSet& set) {
  const plan::Role& head_role = role(entry, reader.layer, reader.head);
  const bool owns = head_role.kind == RoleKind::select;
  const int key_rank = owns ? selector(entry, head_role).terms.front().index.key_rank : 0;
  const bool per_query = set.lists.size() > 1;
  entry.sparse = true;
  for (std::size_t j = 0; j < set.lists.size(); ++j) {
    const auto& list = set.lists[j];
    Unit unit{index, reader.head, per_query ? static_cast<int>(j) : -1, per_query ? 1 : group, 0, 0};
    if (key_rank > 0 && entry.rows.state->low_rank[static_cast<std::size_t>(reader.layer)]) unit.key_rank = key_rank;
    unit.list = list.data();
    unit.entries = static_cast<std::int32_t>(list.size());
    const int u = attend_work.add_unit(unit);
    attend_work.unit(u).partials = add_ranges(unit, 0, static_cast<std::int64_t>(list.size()), u);
    entry.counters.k_rows += static_cast<std::int64_t>(list.size());
    entry.counters.v_rows += static_cast<std::int64_t>(list.size());
    if (unit.key_rank > 0) count_low_rank(entry, reader.layer, unit);
  }
}

kernels::AttendItem Runner::State::kernel_item(const Item& item, const float* q) {
  const BatchEntry& entry = batch[static_cast<std::size_t>(item.batch)];
  const Unit& unit = attend_work.unit(item.unit);
  kernels::AttendItem work;
  work.head = &entry.views[static_cast<std::size_t>(item.head)];
  work.query = head_query(entry, q, 0, item.head) +
               static_cast<std::size_t>(std::max(unit.query_head, 0)) * static_cast<std::size_t>(shape.head_dim);
  work.group = unit.group;
  work.scale = scale;
  work.begin = item.begin;
  work.end = item.end;
  work.list = item.list;
  work.partial = partials.data() + unit.first_partial +
                 static_cast<std::size_t>(item.partial) * kernels::partial_floats(unit.group, shape.head_dim);
  if (unit.keeps_scores) {
    work.scores = scores.data() + unit.first_score;
    work.score_stride = score_stride;
  }
  return work;
}

/// Takes what left the window before `end` into the sums of one head: after a prompt nearly all of it, so whole runs of
/// rows at a time.
void Runner::State::take_dropped(const BatchEntry& entry, int layer, int head, std::int64_t end, int ith) {
  constexpr std::int64_t kRows = 128;
  constexpr std::int64_t page = kernels::kPageTokens;
  DroppedTokens& dropped = entry.rows.state->dropped[entry.rows.state->head(layer, head)];
  const kernels::HeadView& view = entry.views[static_cast<std::size_t>(head)];
  kernels::HeadView values = view;
  values.k_plane = view.v_plane;
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  auto& rows = threads[static_cast<std::size_t>(ith)].dropped;
  rows.resize(kRows * dim);
  const auto add_rows = [&](const kernels::HeadView& from, std::int32_t slot, std::int32_t count,
                            std::vector<double>& sum) {
    kernels::read_keys(cache->shape().format, from, slot, count, rows.data());
    for (std::size_t at = 0; at < static_cast<std::size_t>(count) * dim; at += dim) {
      for (std::size_t i = 0; i < dim; ++i) sum[i] += static_cast<double>(rows[at + i]);
    }
  };
  const std::int64_t sink = selector(entry, role(entry, layer, head)).sink;
  const std::int64_t gap = (sink + page - 1) / page * page;  // slots before and after it are no neighbours
  while (dropped.end < end) {
    std::int64_t stop = std::min(end, dropped.end + kRows);
    if (dropped.end < gap) stop = std::min(stop, gap);
    const auto slot = static_cast<std::int32_t>(stream_slot(view, entry.tokens, sink, dropped.end));
    const auto count = static_cast<std::int32_t>(stop - dropped.end);
    add_rows(view, slot, count, dropped.k_sum);
    add_rows(values, slot, count, dropped.v_sum);
    dropped.end = stop;
  }
}

/// RazorAttention's compensation token (its section 3.3): the mean key and value of what the window lost, weighted by
/// their number, as one more partial result.
void Runner::State::run_mean_token(const Item& item, int layer, const float* q, int ith) {
  BatchEntry& entry = batch[static_cast<std::size_t>(item.batch)];
  const Unit& unit = attend_work.unit(item.unit);
  const plan::Selector& window = selector(entry, role(entry, layer, item.head));
  take_dropped(entry, layer, item.head, entry.tokens - plan::window_tokens(window, entry.tokens), ith);
  const DroppedTokens& dropped = entry.rows.state->dropped[entry.rows.state->head(layer, item.head)];
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const auto count = static_cast<double>(dropped.end - dropped.first);
  float* out = partials.data() + unit.first_partial +
               static_cast<std::size_t>(item.partial) * kernels::partial_floats(unit.group, shape.head_dim);
  float* lse = out + static_cast<std::size_t>(unit.group) * dim;
  const float* queries = head_query(entry, q, 0, item.head);
  for (std::size_t j = 0; j < static_cast<std::size_t>(unit.group); ++j) {
    double dot = 0;
    for (std::size_t i = 0; i < dim; ++i) {
      dot += static_cast<double>(queries[j * dim + i]) * dropped.k_sum[i] / count;
      out[j * dim + i] = static_cast<float>(dropped.v_sum[i] / count);
    }
    lse[j] = static_cast<float>(dot * static_cast<double>(scale) + std::log(count));
  }
}

/// The last thread to finish a unit merges its parts, in order, and lets it select: no barrier of its own.
void Runner::State::combine_unit(int layer, int unit_index, const float* q, float* out, int ith) {
  const Unit& unit = attend_work.unit(unit_index);
  if (unit.prompt_rows > 0) {
    combine_few_rows(unit, layer, q, out, ith);
    return;
  }
  BatchEntry& entry = batch[static_cast<std::size_t>(unit.batch)];
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const std::size_t first_head = static_cast<std::size_t>(unit.head) * static_cast<std::size_t>(group) +
                                 static_cast<std::size_t>(std::max(unit.query_head, 0));
  const float* parts = partials.data() + unit.first_partial;
  kernels::combine(
      parts, unit.partials, unit.group, shape.head_dim,
      out +
          (static_cast<std::size_t>(entry.rows.first_row) * static_cast<std::size_t>(shape.heads) + first_head) * dim);
  if (!unit.keeps_scores) return;
  auto& lse = threads[static_cast<std::size_t>(ith)].lse;
  if (lse.size() < static_cast<std::size_t>(unit.partials)) lse.resize(static_cast<std::size_t>(unit.partials) * 2);
  const std::size_t part_floats = kernels::partial_floats(unit.group, shape.head_dim);
  for (int j = 0; j < unit.group; ++j) {
    for (int p = 0; p < unit.partials; ++p) {
      lse[static_cast<std::size_t>(p)] =
          parts[static_cast<std::size_t>(p) * part_floats + static_cast<std::size_t>(unit.group) * dim +
                static_cast<std::size_t>(j)];
    }
    entry.lse[first_head + static_cast<std::size_t>(j)] =
        kernels::log_sum_exp({lse.data(), static_cast<std::size_t>(unit.partials)});
  }
  if (unit.feeds) feed(entry, layer, unit, ith);
  if (unit.selects) select_head(layer, unit.batch, unit.head, ith);
}

}  // namespace glimpse::attention
