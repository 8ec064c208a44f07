// Tiles of a prompt that read a set (Kascade, section 3.4): a tile pools the scores of its own rows over the keys
// before it, and layers that reuse the slot read what it chose. A tile that reads its own set chooses before it
// attends. One that reads everything chooses behind its own attention, which has the log-sum-exps already.
#include <algorithm>

#include "glimpse/attention/runner_state.h"

namespace glimpse::attention {
namespace {

using plan::RoleKind;
using plan::SetPer;

bool pools_queries(const plan::Term& term) {
  return term.group == plan::GroupPooling::mean_query || term.group == plan::GroupPooling::mean_score;
}

}  // namespace

TileSet& Runner::State::tile_set(BatchEntry& entry, int layer, int head, int tile) {
  return entry.prompt.sets[static_cast<std::size_t>((layer * shape.kv_heads + head) * entry.prompt.tiles + tile)];
}

std::atomic<int>& Runner::State::tile_remaining(PromptWork& prompt, int tile) const {
  return prompt.remaining[shape.kv_heads + 1 + tile];
}

bool Runner::State::tiles_follow(const BatchEntry& entry, int layer) const {
  if (entry.prompt.tile_tokens > kernels::prefill_tile_rows(group)) return false;  // a tile is several items
  for (int head = 0; head < shape.kv_heads; ++head) {
    const plan::Role& head_role = role(entry, layer, head);
    if (head_role.kind != RoleKind::select) continue;
    if (head_role.attends_set || pools_queries(selector(entry, head_role).terms.front())) return false;
  }
  return true;
}

/// Room for the sums of a layer's selecting heads, and how many are still to come.
void Runner::State::open_tiles(BatchEntry& entry, int layer) {
  PromptWork& prompt = entry.prompt;
  int selecting = 0;
  bool per_layer = false;
  for (int head = 0; head < shape.kv_heads; ++head) {
    const plan::Role& head_role = role(entry, layer, head);
    if (head_role.kind != RoleKind::select) continue;
    ++selecting;
    per_layer |= selector(entry, head_role).per == SetPer::layer;
  }
  if (per_layer) {
    prompt.pooled.resize(static_cast<std::size_t>(prompt.tiles * shape.kv_heads) *
                         static_cast<std::size_t>(entry.tokens));
  }
  for (int tile = 0; tile < prompt.tiles; ++tile) {
    tile_remaining(prompt, tile).store(selecting, std::memory_order_relaxed);
  }
}

/// Select phase: one item for each tile and selecting head.
void Runner::State::add_tiles(BatchEntry& entry, int index, int layer) {
  if (tiles_follow(entry, layer)) return;
  open_tiles(entry, layer);
  for (int tile = entry.prompt.tiles - 1; tile >= 0; --tile) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      if (role(entry, layer, head).kind != RoleKind::select) continue;
      select_work.add({Item::Kind::tile, -1, index, head, tile, tile + 1, nullptr, 0});
    }
  }
}

/// The sums of one tile and head, zeroed; empty when the tile reads everything before it, which is then said.
std::span<float> Runner::State::open_tile(const TileOf& at, ThreadScratch& thread) {
  PromptWork& prompt = at.entry.prompt;
  const plan::Selector& how = selector(at.entry, role(at.entry, at.layer, at.head));
  const bool per_layer = how.per == SetPer::layer;
  const std::int64_t start = at.entry.rows.position + static_cast<std::int64_t>(at.tile) * prompt.tile_tokens;
  if (plan::budget_tokens(how.budget, start) >= start || start < at.entry.rows.plan->min_context) {
    if (!per_layer || at.head == 0) {
      tile_set(at.entry, at.layer, per_layer ? 0 : at.head, at.tile).everything = true;
    }
    return {};
  }
  float* sums = per_layer ? prompt.pooled.data() + static_cast<std::size_t>(at.tile * shape.kv_heads + at.head) *
                                                       static_cast<std::size_t>(at.entry.tokens)
                          : thread.selection.pooled.data();
  std::fill_n(sums, start, 0.0F);
  return {sums, static_cast<std::size_t>(start)};
}

/// Chooses from the sums; where the heads of a layer choose together, the last of them does.
void Runner::State::close_tile(const TileOf& at, ThreadScratch& thread) {
  PromptWork& prompt = at.entry.prompt;
  const plan::Selector& how = selector(at.entry, role(at.entry, at.layer, at.head));
  const bool per_layer = how.per == SetPer::layer;
  const std::int64_t start = at.entry.rows.position + static_cast<std::int64_t>(at.tile) * prompt.tile_tokens;
  const std::span<float> all(thread.selection.pooled.data(), static_cast<std::size_t>(start));
  if (per_layer) {
    if (tile_remaining(prompt, at.tile).fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    const float* pooled = prompt.pooled.data() + static_cast<std::size_t>(at.tile * shape.kv_heads) *
                                                     static_cast<std::size_t>(at.entry.tokens);
    std::fill(all.begin(), all.end(), 0.0F);
    for (int head = 0; head < shape.kv_heads; ++head, pooled += at.entry.tokens) {
      for (std::size_t i = 0; i < all.size(); ++i) all[i] += pooled[i];
    }
  }
  TileSet& own = tile_set(at.entry, at.layer, per_layer ? 0 : at.head, at.tile);
  own.everything = false;
  choose_before_tile(how, plan::budget_tokens(how.budget, start), all, thread.selection, own.list);
}

void Runner::State::run_tile(const Item& item, int layer, const float* q, int ith) {
  BatchEntry& entry = batch[static_cast<std::size_t>(item.batch)];
  ThreadScratch& thread = threads[static_cast<std::size_t>(ith)];
  const TileOf at{entry, layer, item.head, item.begin};
  const std::span<float> sums = open_tile(at, thread);
  if (sums.empty()) return;
  const int first_row = at.tile * entry.prompt.tile_tokens;
  const int rows = std::min(entry.prompt.tile_tokens, entry.rows.rows - first_row);
  const auto start = static_cast<std::int32_t>(sums.size());
  const kernels::HeadView& view = entry.views[static_cast<std::size_t>(item.head)];
  const plan::Term& term = selector(entry, role(entry, layer, item.head)).terms.front();
  if (pools_queries(term)) {
    // The mean over rows and the group of q.k is the mean query's product with k.
    const auto dim = static_cast<std::size_t>(shape.head_dim);
    thread.queries.assign(dim, 0.0F);
    for (int row = first_row; row < first_row + rows; ++row) {
      const float* query = head_query(entry, q, row, item.head);
      for (std::size_t i = 0; i < dim * static_cast<std::size_t>(group); ++i) thread.queries[i % dim] += query[i];
    }
    for (float& value : thread.queries) value /= static_cast<float>(rows * group);
    // Probabilities are the row's own softmax, the tile's keys in it, and then heads are averaged: as in decoding. The
    // buffer goes on behind the sums.
    const bool softmax = term.source == plan::Source::probability;
    const std::int32_t end = softmax ? start + rows : start;
    for (std::int32_t begin = 0; begin < end; begin += kernels::kSplitTokens) {
      kernels::ScoreItem work{
          &view, thread.queries.data(), 1, scale, begin, std::min(end, begin + kernels::kSplitTokens), sums.data(), 0};
      kernels::score(cache->shape().format, work);
    }
    if (softmax) {
      const float lse = kernels::log_sum_exp({sums.data(), static_cast<std::size_t>(end)});
      kernels::pool_mean_probability(sums.data(), sums.size(), &lse, 1, sums);
    }
  } else {
    const int step = kernels::prefill_tile_rows(group);
    const auto lse_floats = static_cast<std::size_t>(step * group);
    if (thread.lse.size() < lse_floats) thread.lse.resize(lse_floats);
    for (int row = 0; row < rows; row += step) {
      kernels::ColumnSumsItem columns;
      columns.tile = prompt_item({Item::Kind::prefill, -1, item.batch, item.head, first_row + row,
                                  first_row + std::min(rows, row + step), nullptr, 0},
                                 q);
      columns.tile.lse = thread.lse.data();
      kernels::prefill_lse(cache->shape().format, columns.tile, thread.prefill);
      columns.end = start;
      columns.sums = sums.data();
      kernels::prefill_column_sums(cache->shape().format, columns, thread.prefill);
    }
  }
  close_tile(at, thread);
}

/// Attend phase: `work` has attended to everything and knows its log-sum-exps.
void Runner::State::choose_behind_tile(const Item& item, int layer, const kernels::PrefillItem& work, int ith) {
  BatchEntry& entry = batch[static_cast<std::size_t>(item.batch)];
  ThreadScratch& thread = threads[static_cast<std::size_t>(ith)];
  const TileOf at{entry, layer, item.head, item.begin / entry.prompt.tile_tokens};
  const std::span<float> sums = open_tile(at, thread);
  if (sums.empty()) return;
  kernels::ColumnSumsItem columns;
  columns.tile = work;
  columns.end = static_cast<std::int32_t>(sums.size());
  columns.sums = sums.data();
  kernels::prefill_column_sums(cache->shape().format, columns, thread.prefill);
  close_tile(at, thread);
}

}  // namespace glimpse::attention
