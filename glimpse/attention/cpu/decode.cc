#include "glimpse/attention/cpu/decode.h"

#include <algorithm>
#include <cmath>

#include "glimpse/attention/cpu/audit.h"
#include "glimpse/attention/cpu/feed.h"
#include "glimpse/attention/cpu/low_rank.h"
#include "glimpse/attention/cpu/prompt.h"
#include "glimpse/attention/cpu/select.h"
#include "glimpse/base/error.h"
#include "glimpse/kernels/index.h"

namespace glimpse::attention {
namespace {

constexpr std::int64_t kSplit = kernels::kSplitTokens;

/// The slot of a position in a head that gives back whole pages only (a stream): those before the gap stay in place.
std::int64_t stream_slot(const kernels::HeadView& view, std::int64_t tokens, std::int64_t sink, std::int64_t position) {
  const std::int64_t page = kernels::kPageTokens;
  const std::int64_t gap_begin = (sink + page - 1) / page * page;
  return position < gap_begin ? position : position - (tokens - view.slots);
}

/// Adds items over [begin, end) to a unit; returns the number of partial results.
int add_ranges(Pass& pass, const Unit& unit, std::int64_t begin, std::int64_t end, int unit_index) {
  int parts = 0;
  for (std::int64_t at = begin; at < end; at += kSplit, ++parts) {
    pass.attend_work.add({Item::Kind::attend, unit_index, unit.batch, unit.head, static_cast<std::int32_t>(at),
                          static_cast<std::int32_t>(std::min(end, at + kSplit)), unit.list, unit.partials + parts});
  }
  return parts;
}

void add_window(Pass& pass, BatchEntry& entry, int index, int head, const HeadOp& op) {
  const plan::Selector& window = *op.window;
  const std::int64_t slots = entry.views[static_cast<std::size_t>(head)].slots;
  const std::int64_t local = plan::window_tokens(window, entry.tokens);
  Unit unit{index, head, -1, pass.group, 0, 0};
  unit.entries = static_cast<std::int32_t>(slots);
  const int u = pass.attend_work.add_unit(unit);
  if (window.sink + local >= entry.tokens) {
    entry.sparse |= slots < entry.tokens;
    unit.partials += add_ranges(pass, unit, 0, slots, u);
    entry.counters.k_rows += slots;
    entry.counters.v_rows += slots;
  } else {
    entry.sparse = true;
    unit.partials += add_ranges(pass, unit, 0, window.sink, u);
    unit.partials += add_ranges(pass, unit, slots - local, slots, u);
    entry.counters.k_rows += window.sink + local;
    entry.counters.v_rows += window.sink + local;
    if (op.kept != nullptr && op.kept->compensates) {
      pass.attend_work.add({Item::Kind::mean_token, u, index, head, 0, 0, nullptr, unit.partials});
      ++unit.partials;
      ++entry.counters.k_rows;
      ++entry.counters.v_rows;
    }
  }
  pass.attend_work.unit(u).partials = unit.partials;
}

void add_lists(Pass& pass, BatchEntry& entry, int index, plan::SlotId reader) {
  const HeadOp& op = entry.head(reader.layer, reader.head);
  const PublishedSet& set = entry.rows.state->sets.at(op.set);
  const bool per_query = set.lists.size() > 1;
  entry.sparse = true;
  for (std::size_t j = 0; j < set.lists.size(); ++j) {
    const auto& list = set.lists[j];
    Unit unit{index, reader.head, per_query ? static_cast<int>(j) : -1, per_query ? 1 : pass.group, 0, 0};
    if (op.key_rank > 0 && entry.rows.state->low_rank[static_cast<std::size_t>(reader.layer)]) {
      unit.key_rank = op.key_rank;
    }
    unit.list = list.data();
    unit.entries = static_cast<std::int32_t>(list.size());
    const int u = pass.attend_work.add_unit(unit);
    pass.attend_work.unit(u).partials = add_ranges(pass, unit, 0, static_cast<std::int64_t>(list.size()), u);
    entry.counters.k_rows += static_cast<std::int64_t>(list.size());
    entry.counters.v_rows += static_cast<std::int64_t>(list.size());
    if (unit.key_rank > 0) count_low_rank(pass, entry, reader.layer, unit);
  }
}

void add_decode(Pass& pass, BatchEntry& entry, int index, int layer) {
  SequenceState& state = *entry.rows.state;
  // Dense heads first, by token range over all of them: the order in which the cache lies in memory.
  const int first_unit = static_cast<int>(pass.attend_work.unit_count());
  std::int64_t most_slots = 0;
  for (int head = 0; head < pass.shape.kv_heads; ++head) {
    entry.counters.dense_k_rows += entry.tokens;
    entry.counters.dense_v_rows += entry.tokens;
    const HeadOp& op = entry.head(layer, head);
    const bool reads_all = entry.dense || op.reads == HeadOp::Reads::everything ||
                           (op.reads == HeadOp::Reads::set && state.sets.at(op.set).everything);
    if (!reads_all) continue;
    const std::int64_t slots = entry.views[static_cast<std::size_t>(head)].slots;
    Unit unit{index, head, -1, pass.group, 0, split_count(slots)};
    unit.entries = static_cast<std::int32_t>(slots);
    unit.selects =
        !entry.dense && op.select >= 0 && entry.rows.program->select(layer, head).from == SelectOp::From::attention;
    pass.attend_work.add_unit(unit);
    const std::int64_t live = pass.cache->live_tokens(entry.rows.sequence, layer, head);
    entry.sparse |= live < entry.tokens;
    entry.counters.k_rows += live;
    entry.counters.v_rows += live;
    most_slots = std::max(most_slots, slots);
  }
  const int last_unit = static_cast<int>(pass.attend_work.unit_count());
  for (std::int64_t at = 0; at < most_slots; at += kSplit) {
    for (int u = first_unit; u < last_unit; ++u) {
      const Unit& unit = pass.attend_work.unit(u);
      const std::int64_t slots = entry.views[static_cast<std::size_t>(unit.head)].slots;
      if (at >= slots) continue;
      pass.attend_work.add({Item::Kind::attend, u, index, unit.head, static_cast<std::int32_t>(at),
                            static_cast<std::int32_t>(std::min(slots, at + kSplit)), nullptr,
                            static_cast<int>(at / kSplit)});
    }
  }
  if (entry.dense) return;
  for (int head = 0; head < pass.shape.kv_heads; ++head) {
    const HeadOp& op = entry.head(layer, head);
    if (op.reads == HeadOp::Reads::window) add_window(pass, entry, index, head, op);
    if (op.reads == HeadOp::Reads::set && !state.sets.at(op.set).everything) {
      add_lists(pass, entry, index, {layer, head});
    }
  }
}

/// Takes what left the window before `end` into the sums of one head: after a prompt nearly all of it, so whole runs of
/// rows at a time.
void take_dropped(Pass& pass, const Call& call, const BatchEntry& entry, int head, std::int64_t end) {
  constexpr std::int64_t kRows = 128;
  constexpr std::int64_t page = kernels::kPageTokens;
  DroppedTokens& dropped = entry.rows.state->dropped[entry.rows.state->head(call.layer, head)];
  const kernels::HeadView& view = entry.views[static_cast<std::size_t>(head)];
  kernels::HeadView values = view;
  values.k_plane = view.v_plane;
  const auto dim = static_cast<std::size_t>(pass.shape.head_dim);
  auto& rows = pass.thread(call.ith).dropped;
  rows.resize(kRows * dim);
  const auto add_rows = [&](const kernels::HeadView& from, std::int32_t slot, std::int32_t count,
                            std::vector<double>& sum) {
    kernels::read_keys(pass.cache->shape().format, from, slot, count, rows.data());
    for (std::size_t at = 0; at < static_cast<std::size_t>(count) * dim; at += dim) {
      for (std::size_t i = 0; i < dim; ++i) sum[i] += static_cast<double>(rows[at + i]);
    }
  };
  const std::int64_t sink = entry.head(call.layer, head).window->sink;
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

}  // namespace

void build_attend(Pass& pass, int layer) {
  pass.attend_work.clear();
  for (std::size_t b = 0; b < pass.batch_size; ++b) {
    if (!pass.batch[b].rows.decodes() && !pass.batch[b].failure)
      add_prompt(pass, pass.batch[b], static_cast<int>(b), layer);
  }
  for (std::size_t b = 0; b < pass.batch_size; ++b) {
    BatchEntry& entry = pass.batch[b];
    if (!entry.rows.decodes() || entry.failure) continue;
    int selecting = 0;
    for (const SelectOp& select : entry.layer(layer).selects) {
      if (!entry.dense && select.of_layer() && select.from == SelectOp::From::attention) selecting = select.heads;
    }
    pass.layer_remaining[b].store(selecting, std::memory_order_relaxed);
    add_decode(pass, entry, static_cast<int>(b), layer);
    if (entry.rows.audit) add_audit(pass, entry, static_cast<int>(b));
  }
  std::size_t floats = 0;
  std::size_t score_floats = 0;
  for (std::size_t u = 0; u < pass.attend_work.unit_count(); ++u) {
    Unit& unit = pass.attend_work.unit(static_cast<int>(u));
    unit.first_partial = floats;
    floats += static_cast<std::size_t>(unit.partials) * kernels::partial_floats(unit.group, pass.shape.head_dim);
    BatchEntry& entry = pass.batch[static_cast<std::size_t>(unit.batch)];
    if (unit.prompt_rows > 0) continue;
    unit.feeds = entry.feeds();
    unit.keeps_scores = unit.feeds || unit.selects;
    if (!unit.keeps_scores) continue;
    unit.first_score = score_floats;
    if (unit.selects) entry.score_offset[static_cast<std::size_t>(unit.head)] = score_floats;
    score_floats += static_cast<std::size_t>(unit.group) * pass.score_stride;
  }
  if (pass.scores.size() < score_floats) pass.scores.resize(score_floats);
  if (pass.partials.size() < floats) pass.partials.resize(floats + floats / 4);
  pass.attend_work.seal();
}

kernels::AttendItem kernel_item(Pass& pass, const Item& item, const float* q) {
  const BatchEntry& entry = pass.batch[static_cast<std::size_t>(item.batch)];
  const Unit& unit = pass.attend_work.unit(item.unit);
  kernels::AttendItem work;
  work.head = &entry.views[static_cast<std::size_t>(item.head)];
  work.query = pass.head_query(entry, q, 0, item.head) +
               static_cast<std::size_t>(std::max(unit.query_head, 0)) * static_cast<std::size_t>(pass.shape.head_dim);
  work.group = unit.group;
  work.scale = pass.scale;
  work.begin = item.begin;
  work.end = item.end;
  work.list = item.list;
  work.partial = pass.partials.data() + unit.first_partial +
                 static_cast<std::size_t>(item.partial) * kernels::partial_floats(unit.group, pass.shape.head_dim);
  if (unit.keeps_scores) {
    work.scores = pass.scores.data() + unit.first_score;
    work.score_stride = pass.score_stride;
  }
  return work;
}

/// RazorAttention's compensation token (its section 3.3): the mean key and value of what the window lost, weighted by
/// their number, as one more partial result.
void run_mean_token(Pass& pass, const Call& call, const Item& item) {
  BatchEntry& entry = pass.entry(item);
  const Unit& unit = pass.attend_work.unit(item.unit);
  const plan::Selector& window = *entry.head(call.layer, item.head).window;
  take_dropped(pass, call, entry, item.head, entry.tokens - plan::window_tokens(window, entry.tokens));
  const DroppedTokens& dropped = entry.rows.state->dropped[entry.rows.state->head(call.layer, item.head)];
  const auto dim = static_cast<std::size_t>(pass.shape.head_dim);
  const auto count = static_cast<double>(dropped.end - dropped.first);
  float* out = pass.partials.data() + unit.first_partial +
               static_cast<std::size_t>(item.partial) * kernels::partial_floats(unit.group, pass.shape.head_dim);
  float* lse = out + static_cast<std::size_t>(unit.group) * dim;
  const float* queries = pass.head_query(entry, call.q, 0, item.head);
  for (std::size_t j = 0; j < static_cast<std::size_t>(unit.group); ++j) {
    double dot = 0;
    for (std::size_t i = 0; i < dim; ++i) {
      dot += static_cast<double>(queries[j * dim + i]) * dropped.k_sum[i] / count;
      out[j * dim + i] = static_cast<float>(dropped.v_sum[i] / count);
    }
    lse[j] = static_cast<float>(dot * static_cast<double>(pass.scale) + std::log(count));
  }
}

/// The last thread to finish a unit merges its parts, in order, and lets it select: no barrier of its own.
void combine_unit(Pass& pass, const Call& call, int unit_index) {
  const Unit& unit = pass.attend_work.unit(unit_index);
  if (unit.prompt_rows > 0) {
    combine_few_rows(pass, call, unit);
    return;
  }
  BatchEntry& entry = pass.batch[static_cast<std::size_t>(unit.batch)];
  const auto dim = static_cast<std::size_t>(pass.shape.head_dim);
  const std::size_t first_head = static_cast<std::size_t>(unit.head) * static_cast<std::size_t>(pass.group) +
                                 static_cast<std::size_t>(std::max(unit.query_head, 0));
  const float* parts = pass.partials.data() + unit.first_partial;
  kernels::combine(
      parts, unit.partials, unit.group, pass.shape.head_dim,
      call.out +
          (static_cast<std::size_t>(entry.rows.first_row) * static_cast<std::size_t>(pass.shape.heads) + first_head) *
              dim);
  if (!unit.keeps_scores) return;
  auto& lse = pass.thread(call.ith).lse;
  if (lse.size() < static_cast<std::size_t>(unit.partials)) lse.resize(static_cast<std::size_t>(unit.partials) * 2);
  const std::size_t part_floats = kernels::partial_floats(unit.group, pass.shape.head_dim);
  for (int j = 0; j < unit.group; ++j) {
    for (int p = 0; p < unit.partials; ++p) {
      lse[static_cast<std::size_t>(p)] =
          parts[static_cast<std::size_t>(p) * part_floats + static_cast<std::size_t>(unit.group) * dim +
                static_cast<std::size_t>(j)];
    }
    entry.lse[first_head + static_cast<std::size_t>(j)] =
        kernels::log_sum_exp({lse.data(), static_cast<std::size_t>(unit.partials)});
  }
  if (unit.feeds) feed(pass, call, entry, unit);
  if (unit.selects) select_head(pass, call, unit.batch, unit.head);
}

}  // namespace glimpse::attention
