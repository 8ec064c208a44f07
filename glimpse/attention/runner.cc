#include "glimpse/attention/runner.h"

#include <algorithm>
#include <cmath>

#include "glimpse/attention/runner_state.h"
#include "glimpse/base/error.h"

namespace glimpse::attention {

ReadCounters& ReadCounters::operator+=(const ReadCounters& other) {
  k_rows += other.k_rows;
  v_rows += other.v_rows;
  dense_k_rows += other.dense_k_rows;
  dense_v_rows += other.dense_v_rows;
  dense_steps += other.dense_steps;
  sparse_steps += other.sparse_steps;
  return *this;
}

Runner::State::State(const RunnerShape& runner_shape, kv::Cache& kv_cache)
    : shape(runner_shape),
      cache(&kv_cache),
      group(runner_shape.heads / runner_shape.kv_heads),
      scale(1.0f / std::sqrt(static_cast<float>(runner_shape.head_dim))) {
  const auto threads = static_cast<std::size_t>(shape.threads);
  prefill_scratch.resize(threads);
  selection.resize(threads);
  lse_scratch.resize(threads);
  layer_heads.resize(threads * static_cast<std::size_t>(shape.kv_heads));
}

Runner::Runner(const RunnerShape& shape, kv::Cache& cache) : state_(std::make_unique<State>(shape, cache)) {}
Runner::~Runner() = default;

void Runner::begin(std::span<const SequenceRows> batch) {
  State& state = *state_;
  // One extend is all or nothing by itself; several need a way back.
  auto& marks = state.marks;
  marks.clear();
  try {
    for (const SequenceRows& rows : batch) {
      check(state.cache->length(rows.sequence) == rows.position, "rows continue where their sequence ends");
      check(!rows.decode || rows.rows == 1, "decoding takes one row of a sequence");
      if (batch.size() > 1) marks.push_back(state.cache->mark(rows.sequence));
      state.cache->extend(rows.sequence, rows.rows);
    }
  } catch (...) {
    for (auto mark = marks.rbegin(); mark != marks.rend(); ++mark) state.cache->restore(*mark);
    throw;
  }
  for (const kv::Mark& mark : marks) state.cache->commit(mark);

  if (state.batch.size() < batch.size()) state.batch.resize(batch.size());
  state.batch_size = batch.size();
  const auto kv_heads = static_cast<std::size_t>(state.shape.kv_heads);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    BatchEntry& entry = state.batch[i];
    entry.rows = batch[i];
    entry.tokens = batch[i].position + batch[i].rows;
    entry.dense = !batch[i].decode || plan::is_dense_at(*batch[i].plan, entry.tokens);
    entry.counters = {};
    entry.views.resize(kv_heads);
    entry.score_offset.resize(kv_heads);
    entry.lse.resize(static_cast<std::size_t>(state.shape.heads));
    if (batch[i].decode && !entry.dense) state.evict(entry);
  }
  state.size_scratch();
  state.arrived.store(0);
}

/// Frees whole pages that lie between the sink and the window of streaming heads. Whole pages only: a page goes back
/// to the pool when all of it is free, and a table without holes is read as two plain ranges.
void Runner::State::evict(BatchEntry& entry) {
  const plan::Plan& plan = *entry.rows.plan;
  if (plan.retentions.empty()) return;
  constexpr std::int64_t page = kernels::kPageTokens;
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      const plan::Role& role = plan.role(layer, head);
      if (role.retention < 0) continue;
      const plan::Retention& retention = plan.retentions[static_cast<std::size_t>(role.retention)];
      if (retention.rule != plan::RetentionRule::window) continue;
      const std::int64_t window = plan::budget_tokens(retention.budget, entry.tokens) - retention.sink;
      const std::int64_t dropped = entry.tokens - cache->view(entry.rows.sequence, layer, head).slots;
      const std::int64_t first = (retention.sink + page - 1) / page * page + dropped;
      const std::int64_t last = (entry.tokens - std::max<std::int64_t>(window, 1)) / page * page;
      if (last <= first) continue;
      evicted.clear();
      for (std::int64_t position = first; position < last; ++position) {
        evicted.push_back(static_cast<std::int32_t>(position));
      }
      cache->free_tokens(entry.rows.sequence, layer, head, evicted);
    }
  }
}

void Runner::State::size_scratch() {
  std::int64_t longest = 0;
  bool any_prefill = false;
  bool any_select = false;
  for (const BatchEntry& entry : entries()) {
    longest = std::max(longest, entry.tokens);
    any_prefill |= !entry.rows.decode;
    any_select |= !entry.dense;
  }
  if (any_prefill) {
    const std::size_t bytes = kernels::prefill_workspace(cache->shape().format, group);
    for (auto& scratch : prefill_scratch) {
      if (scratch.size() < bytes) scratch.resize(bytes);
    }
  }
  if (any_select) {
    for (auto& scratch : selection) scratch.reserve(static_cast<std::size_t>(longest));
    score_stride = (static_cast<std::size_t>(longest) + 1023) / 1024 * 1024;
  }
  if (batch_size > layer_remaining_size) {
    layer_remaining = std::make_unique<std::atomic<int>[]>(batch_size);
    layer_remaining_size = batch_size;
  }
}

bool Runner::needs_select(int layer) const {
  for (const BatchEntry& entry : state_->entries()) {
    if (entry.dense) continue;
    for (int head = 0; head < state_->shape.kv_heads; ++head) {
      const plan::Role& role = state_->role(entry, layer, head);
      if (role.kind == plan::RoleKind::select && role.attends_set) return true;
    }
  }
  return false;
}

void Runner::append(const RowsToAppend& rows) {
  State& state = *state_;
  const BatchEntry& entry = state.batch[static_cast<std::size_t>(rows.batch_index)];
  const kernels::HeadView view = state.cache->view(entry.rows.sequence, rows.layer, rows.kv_head);
  kernels::AppendItem item;
  item.head = &view;
  item.k = rows.k;
  item.v = rows.v;
  item.row_stride = rows.stride;
  item.slot = view.slots - entry.rows.rows + rows.first;
  item.rows = rows.rows;
  kernels::append(state.cache->shape().format, item);
}

std::span<const ReadCounters> Runner::end() {
  State& state = *state_;
  if (state.failure) {
    std::exception_ptr failure;
    std::swap(failure, state.failure);
    std::rethrow_exception(failure);
  }
  state.counters.clear();
  for (BatchEntry& entry : state.entries()) {
    if (entry.rows.decode) {
      const bool sparse =
          entry.counters.k_rows + entry.counters.v_rows < entry.counters.dense_k_rows + entry.counters.dense_v_rows;
      (sparse ? entry.counters.sparse_steps : entry.counters.dense_steps) = 1;
    }
    state.counters.push_back(entry.counters);
  }
  return state.counters;
}

}  // namespace glimpse::attention
