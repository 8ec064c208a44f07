// The phases of a layer: what they work on, and the work.
#include <algorithm>
#include <limits>

#include "glimpse/attention/runner.h"
#include "glimpse/attention/runner_state.h"
#include "glimpse/base/error.h"

namespace glimpse::attention {
namespace {

using plan::RoleKind;
using plan::SetPer;

constexpr std::int64_t kSplit = kernels::kSplitTokens;

}  // namespace

void Runner::appended(int layer, int nth) {
  State& state = *state_;
  if (!state.last_to_arrive(nth)) return;
  state.guarded([&] {
    for (BatchEntry& entry : state.entries()) {
      for (int head = 0; head < state.shape.kv_heads; ++head) {
        entry.views[static_cast<std::size_t>(head)] = state.cache->view(entry.rows.sequence, layer, head);
      }
    }
    if (needs_select(layer)) {
      state.build_scores(layer);
    } else {
      state.build_attend(layer);
    }
  });
}

/// Score work of the heads that attend to their own set only.
void Runner::State::build_scores(int layer) {
  score_work.clear();
  std::size_t floats = 0;
  for (std::size_t b = 0; b < batch_size; ++b) {
    BatchEntry& entry = batch[b];
    layer_remaining[b].store(0, std::memory_order_relaxed);
    if (entry.dense) continue;
    int scored = 0;
    for (int head = 0; head < shape.kv_heads; ++head) {
      const plan::Role& head_role = role(entry, layer, head);
      if (head_role.kind != RoleKind::select || !head_role.attends_set) continue;
      entry.score_offset[static_cast<std::size_t>(head)] = floats;
      floats += static_cast<std::size_t>(group) * score_stride;
      Unit unit{static_cast<int>(b), head, -1, group, 0, split_count(entry.tokens), true};
      const int index = score_work.add_unit(unit);
      for (int part = 0; part < unit.partials; ++part) {
        const auto begin = static_cast<std::int32_t>(part * kSplit);
        const auto end = static_cast<std::int32_t>(std::min<std::int64_t>(entry.tokens, begin + kSplit));
        score_work.add({Item::Kind::score, index, unit.batch, head, begin, end, nullptr, part});
      }
      entry.counters.k_rows += entry.tokens;
      ++scored;
    }
    layer_remaining[b].store(scored, std::memory_order_relaxed);
  }
  if (scores.size() < floats) scores.resize(floats);
  score_work.seal();
}

void Runner::select(int layer, const float* q, int ith, int nth) {
  State& state = *state_;
  const auto dim = static_cast<std::size_t>(state.shape.head_dim);
  state.guarded([&] {
    while (const Item* item = state.score_work.take()) {
      BatchEntry& entry = state.batch[static_cast<std::size_t>(item->batch)];
      const auto head = static_cast<std::size_t>(item->head);
      kernels::ScoreItem work;
      work.head = &entry.views[head];
      work.query = q + (static_cast<std::size_t>(entry.rows.first_row) * static_cast<std::size_t>(state.shape.heads) +
                        head * static_cast<std::size_t>(state.group)) *
                           dim;
      work.group = state.group;
      work.scale = state.scale;
      work.begin = item->begin;
      work.end = item->end;
      work.scores = state.scores.data() + entry.score_offset[head];
      work.score_stride = state.score_stride;
      kernels::score(state.cache->shape().format, work);
      if (!state.score_work.finish_one(item->unit)) continue;
      for (int j = 0; j < state.group; ++j) {
        const float* row = work.scores + static_cast<std::size_t>(j) * state.score_stride;
        entry.lse[head * static_cast<std::size_t>(state.group) + static_cast<std::size_t>(j)] =
            kernels::log_sum_exp({row, static_cast<std::size_t>(entry.tokens)});
      }
      state.select_head(layer, item->batch, item->head, ith);
    }
  });
  if (state.last_to_arrive(nth)) state.guarded([&] { state.build_attend(layer); });
}

/// Adds items over [begin, end) to a unit; returns the number of partial results.
int Runner::State::add_ranges(const Unit& unit, const std::int32_t* list, std::int64_t begin, std::int64_t end,
                              int unit_index) {
  int parts = 0;
  for (std::int64_t at = begin; at < end; at += kSplit, ++parts) {
    attend_work.add({Item::Kind::attend, unit_index, unit.batch, unit.head, static_cast<std::int32_t>(at),
                     static_cast<std::int32_t>(std::min(end, at + kSplit)), list, unit.partials + parts});
  }
  return parts;
}

void Runner::State::build_attend(int layer) {
  attend_work.clear();
  std::size_t score_floats = 0;
  for (std::size_t b = 0; b < batch_size; ++b) {
    BatchEntry& entry = batch[b];
    const int index = static_cast<int>(b);
    if (!entry.rows.decode) add_prefill(entry, index);
  }
  for (std::size_t b = 0; b < batch_size; ++b) {
    BatchEntry& entry = batch[b];
    if (!entry.rows.decode) continue;
    int selecting = 0;
    for (int head = 0; head < shape.kv_heads && !entry.dense; ++head) {
      const plan::Role& head_role = role(entry, layer, head);
      if (head_role.kind != RoleKind::select || head_role.attends_set) continue;
      entry.score_offset[static_cast<std::size_t>(head)] = score_floats;
      score_floats += static_cast<std::size_t>(group) * score_stride;
      ++selecting;
    }
    layer_remaining[b].store(selecting, std::memory_order_relaxed);
    add_decode(entry, static_cast<int>(b), layer);
  }
  if (scores.size() < score_floats) scores.resize(score_floats);
  std::size_t floats = 0;
  for (std::size_t u = 0; u < attend_work.unit_count(); ++u) {
    Unit& unit = attend_work.unit(static_cast<int>(u));
    unit.first_partial = floats;
    floats += static_cast<std::size_t>(unit.partials) * kernels::partial_floats(unit.group, shape.head_dim);
  }
  if (partials.size() < floats) partials.resize(floats + floats / 4);
  attend_work.seal();
}

void Runner::State::add_decode(BatchEntry& entry, int index, int layer) {
  // Dense heads first, by token range over all of them: the order in which the cache lies in memory.
  const int first_unit = static_cast<int>(attend_work.unit_count());
  std::int64_t most_slots = 0;
  for (int head = 0; head < shape.kv_heads; ++head) {
    entry.counters.dense_k_rows += entry.tokens;
    entry.counters.dense_v_rows += entry.tokens;
    const plan::Role& head_role = role(entry, layer, head);
    const bool selects = !entry.dense && head_role.kind == RoleKind::select;
    const bool reads_all = entry.dense || head_role.kind == RoleKind::dense || (selects && !head_role.attends_set) ||
                           (selects && entry.rows.sets->at({layer, head}).everything) ||
                           (head_role.kind == RoleKind::reuse && entry.rows.sets->at(head_role.reads).everything);
    if (!reads_all) continue;
    const std::int64_t slots = entry.views[static_cast<std::size_t>(head)].slots;
    Unit unit{index, head, -1, group, 0, split_count(slots), selects && !head_role.attends_set};
    attend_work.add_unit(unit);
    entry.counters.k_rows += slots;
    entry.counters.v_rows += slots;
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
      const PublishedSet& own =
          entry.rows.sets->at({layer, selector(entry, head_role).per == SetPer::layer ? 0 : head});
      if (!own.everything) add_lists(entry, index, head, own);
    } else if (head_role.kind == RoleKind::reuse) {
      const PublishedSet& set = entry.rows.sets->at(head_role.reads);
      if (!set.everything) add_lists(entry, index, head, set);
    }
  }
}

void Runner::State::add_streams(BatchEntry& entry, int index, int head, const plan::Role& head_role) {
  const plan::Selector& window = selector(entry, head_role);
  const std::int64_t slots = entry.views[static_cast<std::size_t>(head)].slots;
  const std::int64_t local = plan::window_tokens(window, entry.tokens);
  Unit unit{index, head, -1, group, 0, 0, false};
  const int u = attend_work.add_unit(unit);
  if (window.sink + local >= slots) {
    unit.partials += add_ranges(unit, nullptr, 0, slots, u);
    entry.counters.k_rows += slots;
    entry.counters.v_rows += slots;
  } else {
    unit.partials += add_ranges(unit, nullptr, 0, window.sink, u);
    unit.partials += add_ranges(unit, nullptr, slots - local, slots, u);
    entry.counters.k_rows += window.sink + local;
    entry.counters.v_rows += window.sink + local;
  }
  attend_work.unit(u).partials = unit.partials;
}

void Runner::State::add_lists(BatchEntry& entry, int index, int head, const PublishedSet& set) {
  const bool per_query = set.lists.size() > 1;
  for (std::size_t j = 0; j < set.lists.size(); ++j) {
    const auto& list = set.lists[j];
    Unit unit{index, head, per_query ? static_cast<int>(j) : -1, per_query ? 1 : group, 0, 0, false};
    const int u = attend_work.add_unit(unit);
    attend_work.unit(u).partials = add_ranges(unit, list.data(), 0, static_cast<std::int64_t>(list.size()), u);
    entry.counters.k_rows += static_cast<std::int64_t>(list.size());
    entry.counters.v_rows += static_cast<std::int64_t>(list.size());
  }
}

void Runner::State::add_prefill(BatchEntry& entry, int index) {
  // Later tiles see more keys: the longest first, so that no thread ends alone.
  const int tile = kernels::prefill_tile_rows(group);
  const int tiles = (entry.rows.rows + tile - 1) / tile;
  for (int t = tiles - 1; t >= 0; --t) {
    const std::int32_t begin = t * tile;
    const std::int32_t end = std::min(entry.rows.rows, begin + tile);
    for (int head = 0; head < shape.kv_heads; ++head) {
      attend_work.add({Item::Kind::prefill, -1, index, head, begin, end, nullptr, 0});
    }
  }
}

void Runner::attend(int layer, const float* q, float* out, int ith, int nth) {
  State& state = *state_;
  state.guarded([&] {
    // A thread takes its next item early where there are many: the kernel then fetches that item's first rows. Prompt
    // tiles are first in the list, so what follows an attend item is one too.
    const Item* item = state.attend_work.take();
    while (item != nullptr) {
      if (item->kind == Item::Kind::prefill) {
        state.run_prefill(*item, q, out, ith);
        item = state.attend_work.take();
        continue;
      }
      const Item* next = state.attend_work.plenty(nth) ? state.attend_work.take() : nullptr;
      kernels::AttendItem work = state.kernel_item(*item, q);
      kernels::AttendItem following;
      if (next != nullptr) {
        following = state.kernel_item(*next, q);
        work.next = &following;
      }
      kernels::attend(state.cache->shape().format, work);
      if (state.attend_work.finish_one(item->unit)) {
        state.combine_unit(layer, state.attend_work.unit(item->unit), out, ith);
      }
      item = next != nullptr ? next : state.attend_work.take();
    }
  });
  if (state.last_to_arrive(nth) && observer) state.guarded([&] { state.observe(layer, q, observer); });
}

void Runner::State::run_prefill(const Item& item, const float* q, float* out, int ith) {
  const BatchEntry& entry = batch[static_cast<std::size_t>(item.batch)];
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const std::size_t row_floats = static_cast<std::size_t>(shape.heads) * dim;
  const kernels::HeadView& view = entry.views[static_cast<std::size_t>(item.head)];
  const std::size_t first = static_cast<std::size_t>(entry.rows.first_row + item.begin) * row_floats +
                            static_cast<std::size_t>(item.head) * static_cast<std::size_t>(group) * dim;
  kernels::PrefillItem work;
  work.head = &view;
  work.query = q + first;
  work.query_stride = row_floats;
  work.out = out + first;
  work.out_stride = row_floats;
  work.group = group;
  work.scale = scale;
  work.first_slot = view.slots - entry.rows.rows + item.begin;
  work.rows = item.end - item.begin;
  kernels::prefill(cache->shape().format, work, prefill_scratch[static_cast<std::size_t>(ith)]);
}

kernels::AttendItem Runner::State::kernel_item(const Item& item, const float* q) {
  const BatchEntry& entry = batch[static_cast<std::size_t>(item.batch)];
  const Unit& unit = attend_work.unit(item.unit);
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const auto first_head = static_cast<std::size_t>(item.head * group + std::max(unit.query_head, 0));
  kernels::AttendItem work;
  work.head = &entry.views[static_cast<std::size_t>(item.head)];
  work.query =
      q + (static_cast<std::size_t>(entry.rows.first_row) * static_cast<std::size_t>(shape.heads) + first_head) * dim;
  work.group = unit.group;
  work.scale = scale;
  work.begin = item.begin;
  work.end = item.end;
  work.list = item.list;
  work.partial = partials.data() + unit.first_partial +
                 static_cast<std::size_t>(item.partial) * kernels::partial_floats(unit.group, shape.head_dim);
  if (unit.select_after) {
    work.scores = scores.data() + entry.score_offset[static_cast<std::size_t>(item.head)];
    work.score_stride = score_stride;
  }
  return work;
}

/// The last thread to finish a unit merges its parts, in order, and lets it select: no barrier of its own.
void Runner::State::combine_unit(int layer, const Unit& unit, float* out, int ith) {
  BatchEntry& entry = batch[static_cast<std::size_t>(unit.batch)];
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const std::size_t first_head = static_cast<std::size_t>(unit.head) * static_cast<std::size_t>(group) +
                                 static_cast<std::size_t>(std::max(unit.query_head, 0));
  const float* parts = partials.data() + unit.first_partial;
  kernels::combine(
      parts, unit.partials, unit.group, shape.head_dim,
      out +
          (static_cast<std::size_t>(entry.rows.first_row) * static_cast<std::size_t>(shape.heads) + first_head) * dim);
  if (!unit.select_after) return;
  auto& lse = lse_scratch[static_cast<std::size_t>(ith)];
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
  select_head(layer, unit.batch, unit.head, ith);
}

void Runner::State::publish(PublishedSet& set, std::size_t list, std::int64_t tokens) {
  set.everything = (list == 0 || set.everything) && static_cast<std::int64_t>(set.lists[list].size()) >= tokens;
}

void Runner::State::select_head(int layer, int batch_index, int head, int ith) {
  BatchEntry& entry = batch[static_cast<std::size_t>(batch_index)];
  const plan::Role& head_role = role(entry, layer, head);
  const plan::Selector& how = selector(entry, head_role);
  if (how.per == SetPer::layer) {  // the last head to be scored selects for all
    if (layer_remaining[batch_index].fetch_sub(1, std::memory_order_acq_rel) == 1)
      select_layer(layer, batch_index, ith);
    return;
  }
  SelectionScratch& scratch = selection[static_cast<std::size_t>(ith)];
  const auto tokens = static_cast<std::size_t>(entry.tokens);
  const std::span<float> pooled(scratch.pooled.data(), tokens);
  const float* head_scores = scores.data() + entry.score_offset[static_cast<std::size_t>(head)];
  const float* lse = entry.lse.data() + static_cast<std::size_t>(head) * static_cast<std::size_t>(group);
  PublishedSet& set = entry.rows.sets->at({layer, head});
  const int lists = how.per == SetPer::query_head ? group : 1;
  for (int j = 0; j < lists; ++j) {
    const auto offset = static_cast<std::size_t>(j);
    pool_group(how.terms.front(),
               {head_scores + offset * score_stride, score_stride, lse + offset, lists > 1 ? 1 : group}, pooled);
    choose(how, pooled, scratch, set.lists[offset]);
    publish(set, offset, entry.tokens);
  }
}

void Runner::State::select_layer(int layer, int batch_index, int ith) {
  BatchEntry& entry = batch[static_cast<std::size_t>(batch_index)];
  SelectionScratch& scratch = selection[static_cast<std::size_t>(ith)];
  const auto kv_heads = static_cast<std::size_t>(shape.kv_heads);
  const std::span<HeadScores> heads(layer_heads.data() + static_cast<std::size_t>(ith) * kv_heads, kv_heads);
  for (std::size_t head = 0; head < kv_heads; ++head) {
    heads[head] = {scores.data() + entry.score_offset[head], score_stride,
                   entry.lse.data() + head * static_cast<std::size_t>(group), group};
  }
  const plan::Selector& how = selector(entry, role(entry, layer, 0));
  const std::span<float> pooled(scratch.pooled.data(), static_cast<std::size_t>(entry.tokens));
  pool_layer(how.terms.front(), heads, scratch, pooled);
  PublishedSet& set = entry.rows.sets->at({layer, 0});
  choose(how, pooled, scratch, set.lists[0]);
  publish(set, 0, entry.tokens);
}

}  // namespace glimpse::attention
