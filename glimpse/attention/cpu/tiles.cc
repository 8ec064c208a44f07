// Tiles of a prompt that read a set (Kascade, section 3.4): a tile pools the scores of its own rows over the keys
// before it, and layers that reuse the slot read what it chose. A tile that reads its own set chooses before it
// attends. One that reads everything chooses behind its own attention, which has the log-sum-exps already.
#include "glimpse/attention/cpu/tiles.h"

#include <algorithm>

namespace glimpse::attention {
namespace {

using plan::SetPer;

std::atomic<int>& tile_remaining(Pass& pass, PromptWork& prompt, int tile) {
  return prompt.remaining[pass.shape.kv_heads + 1 + tile];
}

/// The sums of one tile and head, zeroed; empty when the tile reads everything before it, which is then said.
std::span<float> open_tile(Pass& pass, const TileOf& at, ThreadScratch& thread) {
  PromptWork& prompt = at.entry.prompt;
  const plan::Selector& how = *at.entry.rows.program->select(at.layer, at.head).selector;
  const bool per_layer = how.per == SetPer::layer;
  const std::int64_t start = at.entry.rows.position + static_cast<std::int64_t>(at.tile) * prompt.tile_tokens;
  if (plan::budget_tokens(how.budget, start) >= start || start < at.entry.rows.program->min_context()) {
    if (!per_layer || at.head == 0) {
      tile_set(pass, at.entry, at.layer, per_layer ? 0 : at.head, at.tile).everything = true;
    }
    return {};
  }
  float* sums = per_layer ? prompt.pooled.data() + static_cast<std::size_t>(at.tile * pass.shape.kv_heads + at.head) *
                                                       static_cast<std::size_t>(at.entry.tokens)
                          : thread.selection.pooled.data();
  std::fill_n(sums, start, 0.0F);
  return {sums, static_cast<std::size_t>(start)};
}

/// Chooses from the sums; where the heads of a layer choose together, the last of them does.
void close_tile(Pass& pass, const TileOf& at, ThreadScratch& thread) {
  PromptWork& prompt = at.entry.prompt;
  const plan::Selector& how = *at.entry.rows.program->select(at.layer, at.head).selector;
  const bool per_layer = how.per == SetPer::layer;
  const std::int64_t start = at.entry.rows.position + static_cast<std::int64_t>(at.tile) * prompt.tile_tokens;
  const std::span<float> all(thread.selection.pooled.data(), static_cast<std::size_t>(start));
  if (per_layer) {
    if (tile_remaining(pass, prompt, at.tile).fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    const float* pooled = prompt.pooled.data() + static_cast<std::size_t>(at.tile * pass.shape.kv_heads) *
                                                     static_cast<std::size_t>(at.entry.tokens);
    std::fill(all.begin(), all.end(), 0.0F);
    for (int head = 0; head < pass.shape.kv_heads; ++head, pooled += at.entry.tokens) {
      for (std::size_t i = 0; i < all.size(); ++i) all[i] += pooled[i];
    }
  }
  TileSet& own = tile_set(pass, at.entry, at.layer, per_layer ? 0 : at.head, at.tile);
  own.everything = false;
  choose_before_tile(how, plan::budget_tokens(how.budget, start), all, thread.selection, own.list);
}

}  // namespace

TileSet& tile_set(Pass& pass, BatchEntry& entry, int layer, int head, int tile) {
  return entry.prompt.sets[static_cast<std::size_t>((layer * pass.shape.kv_heads + head) * entry.prompt.tiles + tile)];
}

/// Room for the sums of a layer's selecting heads, and how many are still to come.
void open_tiles(Pass& pass, BatchEntry& entry, int layer) {
  PromptWork& prompt = entry.prompt;
  int selecting = 0;
  bool per_layer = false;
  for (const SelectOp& select : entry.layer(layer).selects) {
    selecting += select.heads;
    per_layer |= select.of_layer();
  }
  if (per_layer) {
    prompt.pooled.resize(static_cast<std::size_t>(prompt.tiles * pass.shape.kv_heads) *
                         static_cast<std::size_t>(entry.tokens));
  }
  for (int tile = 0; tile < prompt.tiles; ++tile) {
    tile_remaining(pass, prompt, tile).store(selecting, std::memory_order_relaxed);
  }
}

/// Select phase: one item for each tile and selecting head.
void add_tiles(Pass& pass, BatchEntry& entry, int index, int layer) {
  if (entry.layer(layer).tiles_follow) return;
  open_tiles(pass, entry, layer);
  for (int tile = entry.prompt.tiles - 1; tile >= 0; --tile) {
    for (int head = 0; head < pass.shape.kv_heads; ++head) {
      if (entry.head(layer, head).select < 0) continue;
      pass.items.add({Item::Kind::tile, index, head, tile, tile + 1});
    }
  }
}

void run_tile(Pass& pass, const Call& call, const Item& item) {
  BatchEntry& entry = pass.entry(item.batch);
  ThreadScratch& thread = pass.thread(call.ith);
  const TileOf at{entry, call.layer, item.head, item.begin};
  const std::span<float> sums = open_tile(pass, at, thread);
  if (sums.empty()) return;
  const int first_row = at.tile * entry.prompt.tile_tokens;
  const int rows = std::min(entry.prompt.tile_tokens, entry.rows.rows - first_row);
  const auto start = static_cast<std::int32_t>(sums.size());
  const kernels::HeadView& view = entry.views[static_cast<std::size_t>(item.head)];
  const plan::Term& term = entry.rows.program->select(call.layer, item.head).selector->terms.front();
  if (pools_queries(term)) {
    // The mean over rows and the group of q.k is the mean query's product with k.
    const auto dim = static_cast<std::size_t>(pass.shape.head_dim);
    thread.queries.assign(dim, 0.0F);
    for (int row = first_row; row < first_row + rows; ++row) {
      const float* query = pass.head_query(entry, call.q, row, item.head);
      for (std::size_t i = 0; i < dim * static_cast<std::size_t>(pass.group); ++i) thread.queries[i % dim] += query[i];
    }
    for (float& value : thread.queries) value /= static_cast<float>(rows * pass.group);
    // Probabilities are the row's own softmax, the tile's keys in it, and then heads are averaged: as in decoding. The
    // buffer goes on behind the sums.
    const bool softmax = term.source == plan::Source::probability;
    const std::int32_t end = softmax ? start + rows : start;
    for (std::int32_t begin = 0; begin < end; begin += kernels::kSplitTokens) {
      kernels::ScoreItem work{
          &view, thread.queries.data(), 1, pass.scale, begin, std::min(end, begin + kernels::kSplitTokens), sums.data(),
          0};
      kernels::score(pass.cache->shape().format, work);
    }
    if (softmax) {
      const float lse = kernels::log_sum_exp({sums.data(), static_cast<std::size_t>(end)});
      kernels::pool_mean_probability(sums.data(), sums.size(), &lse, 1, sums);
    }
  } else {
    const int step = kernels::prefill_tile_rows(pass.group);
    const auto lse_floats = static_cast<std::size_t>(step * pass.group);
    if (thread.lse.size() < lse_floats) thread.lse.resize(lse_floats);
    for (int row = 0; row < rows; row += step) {
      kernels::ColumnSumsItem columns;
      columns.tile = pass.prompt_item(
          {Item::Kind::prefill, item.batch, item.head, first_row + row, first_row + std::min(rows, row + step)},
          call.q);
      columns.tile.lse = thread.lse.data();
      kernels::prefill_lse(pass.cache->shape().format, columns.tile, thread.prefill);
      columns.end = start;
      columns.sums = sums.data();
      kernels::prefill_column_sums(pass.cache->shape().format, columns, thread.prefill);
    }
  }
  close_tile(pass, at, thread);
}

/// Attend phase: `work` has attended to everything and knows its log-sum-exps.
void choose_behind_tile(Pass& pass, const Call& call, const Item& item, const kernels::PrefillItem& work) {
  BatchEntry& entry = pass.entry(item.batch);
  ThreadScratch& thread = pass.thread(call.ith);
  const TileOf at{entry, call.layer, item.head, item.begin / entry.prompt.tile_tokens};
  const std::span<float> sums = open_tile(pass, at, thread);
  if (sums.empty()) return;
  kernels::ColumnSumsItem columns;
  columns.tile = work;
  columns.end = static_cast<std::int32_t>(sums.size());
  columns.sums = sums.data();
  kernels::prefill_column_sums(pass.cache->shape().format, columns, thread.prefill);
  close_tile(pass, at, thread);
}

}  // namespace glimpse::attention
