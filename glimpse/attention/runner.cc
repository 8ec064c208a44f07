#include "glimpse/attention/runner.h"

#include <algorithm>
#include <cmath>

#include "glimpse/attention/runner_state.h"
#include "glimpse/base/error.h"

namespace glimpse::attention {
namespace {

/// Rows that read every token that their heads keep.
bool reads_everything(const SequenceRows& rows) {
  return !rows.decodes() || rows.kind == PassKind::dense_decode ||
         plan::is_dense_at(*rows.plan, rows.position + rows.rows);
}

}  // namespace

ReadCounters& ReadCounters::operator+=(const ReadCounters& other) {
  k_rows += other.k_rows;
  v_rows += other.v_rows;
  dense_k_rows += other.dense_k_rows;
  dense_v_rows += other.dense_v_rows;
  index_bytes += other.index_bytes;
  low_rank_rows += other.low_rank_rows;
  low_rank_bytes += other.low_rank_bytes;
  recalled_pages += other.recalled_pages;
  recalled_bytes += other.recalled_bytes;
  resident_hits += other.resident_hits;
  if (other.resident_tokens) resident_tokens = std::max(resident_tokens.value_or(0), *other.resident_tokens);
  coverage += other.coverage;
  audited += other.audited;
  audits += other.audits;
  audit_s += other.audit_s;
  dense_steps += other.dense_steps;
  sparse_steps += other.sparse_steps;
  index_build_s += other.index_build_s;
  return *this;
}

Runner::State::State(const RunnerShape& runner_shape, kv::Cache& kv_cache)
    : shape(runner_shape),
      cache(&kv_cache),
      group(runner_shape.heads / runner_shape.kv_heads),
      scale(1.0f / std::sqrt(static_cast<float>(runner_shape.head_dim))) {
  threads.resize(static_cast<std::size_t>(shape.threads));
  for (ThreadScratch& thread : threads) thread.heads.resize(static_cast<std::size_t>(shape.kv_heads));
}

Runner::Runner(const RunnerShape& shape, kv::Cache& cache) : state_(std::make_unique<State>(shape, cache)) {}
Runner::~Runner() = default;

void Runner::begin(std::span<const SequenceRows> batch) {
  State& state = *state_;
  state.began = false;
  state.failure = nullptr;
  state.stopped.store(false);
  // One extend is all or nothing by itself; several need a way back.
  auto& marks = state.marks;
  marks.clear();
  try {
    for (const SequenceRows& rows : batch) {
      check(!rows.decodes() || rows.rows == 1, "decoding takes one row of a sequence");
      if (reads_everything(rows) || rows.audit) state.cache->recall_all(rows.sequence);
      if (rows.kind == PassKind::correct) {
        const std::int64_t length = state.cache->length(rows.sequence);
        check(rows.position + rows.rows <= length, "corrected tokens are there");
        state.cache->rewrite(rows.sequence, length - rows.position);
        continue;
      }
      check(state.cache->length(rows.sequence) == rows.position, "rows continue where their sequence ends");
      if (batch.size() > 1) marks.push_back(state.cache->mark(rows.sequence));
      state.cache->extend(rows.sequence, rows.rows);
    }
  } catch (...) {
    for (auto mark = marks.rbegin(); mark != marks.rend(); ++mark) state.cache->restore(*mark);
    throw;
  }
  state.began = true;
  for (const kv::Mark& mark : marks) state.cache->commit(mark);

  if (state.batch.size() < batch.size()) state.batch.resize(batch.size());
  state.batch_size = batch.size();
  for (std::size_t i = 0; i < batch.size(); ++i) state.open_entry(state.batch[i], batch[i]);
  state.size_scratch();
  state.counters.clear();
  state.counters.reserve(batch.size());
  state.arrived.store(0);
}

bool Runner::State::ends_prompt(const SequenceRows& rows) const {
  const std::int64_t tokens = rows.position + rows.rows;
  if (rows.kind != PassKind::prompt || tokens != rows.prompt_end) return false;
  return rows.state->is_prompt(*rows.plan, tokens);
}

void Runner::State::open_entry(BatchEntry& entry, const SequenceRows& rows) {
  const auto kv_heads = static_cast<std::size_t>(shape.kv_heads);
  check(rows.plan->shape.head_dim == shape.head_dim, "a plan is made for the model's head dimension");
  entry.rows = rows;
  entry.failure = nullptr;
  entry.tokens = rows.position + rows.rows;
  entry.dense = reads_everything(rows);
  entry.ends_prompt = ends_prompt(rows);
  entry.counters = {};
  entry.views.resize(kv_heads);
  entry.score_offset.resize(kv_heads);
  entry.lse.resize(static_cast<std::size_t>(shape.heads));
  entry.index_bytes.assign(kv_heads, 0);
  entry.known.assign(entry.dense ? 0 : static_cast<std::size_t>(shape.layers) * kv_heads, {});
  entry.audited.assign(rows.audit ? static_cast<std::size_t>(shape.layers) * kv_heads : 0, {});
  entry.index_build_s.assign(kv_heads + 1, 0);
  entry.audit_s.assign(kv_heads, 0);
  entry.sparse = false;
  if (entry.feeds() && rows.state->has_heat()) {
    entry.heat_feed.resize(static_cast<std::size_t>(shape.layers) * kv_heads);
    for (auto& feed : entry.heat_feed) feed.clear();
  }
  if (rows.state->wants_low_rank() && (!rows.decodes() || !entry.dense)) {
    check(shape.rotation != nullptr, "keys of low rank are turned by somebody");
    shape.rotation->prepare(rows.decodes() ? rows.state->prompt_tokens : std::max(rows.prompt_end, entry.tokens));
  }
  // In steps, so that a decoded token seldom makes the tables grow.
  constexpr std::int64_t kStep = 1024;
  const std::int64_t positions = (std::max(rows.prompt_end, entry.tokens) + kStep - 1) / kStep * kStep;
  for (const auto& gates : rows.state->gates()) gates->prepare(positions);
  if (rows.decodes()) {
    evict(entry);
  } else {
    open_prompt(entry);
  }
}

void Runner::State::size_scratch() {
  std::int64_t longest = 0;
  bool any_prefill = false;
  bool any_select = false;
  for (const BatchEntry& entry : entries()) {
    longest = std::max(longest, entry.tokens);
    any_prefill |= !entry.rows.decodes();
    any_select |= !entry.dense || entry.feeds() || entry.prompt.tile_tokens > 0;
  }
  if (any_prefill) {
    const kernels::KvFormat& format = cache->shape().format;
    const std::size_t bytes = std::max(kernels::prefill_workspace(format, group),
                                       kernels::attend_rows_workspace(format, kernels::kFewRows * group));
    for (ThreadScratch& thread : threads) {
      if (thread.prefill.size() < bytes) thread.prefill.resize(bytes);
    }
  }
  if (any_select) {
    for (ThreadScratch& thread : threads) thread.selection.reserve(static_cast<std::size_t>(longest));
    score_stride = (static_cast<std::size_t>(longest) + 1023) / 1024 * 1024;
  }
  if (batch_size > layer_remaining_size) {
    layer_remaining = std::make_unique<std::atomic<int>[]>(batch_size);
    layer_remaining_size = batch_size;
  }
}

bool Runner::needs_select(int layer) const {
  for (const BatchEntry& entry : state_->entries()) {
    if (entry.rows.decodes() ? entry.dense : entry.prompt.tile_tokens == 0) continue;
    for (int head = 0; head < state_->shape.kv_heads; ++head) {
      const plan::Role& role = state_->role(entry, layer, head);
      if (role.kind != plan::RoleKind::select) continue;
      if (!entry.rows.decodes()) {
        if (!state_->tiles_follow(entry, layer)) return true;
        continue;
      }
      if (role.attends_set) return true;
      if (plan::is_index(state_->selector(entry, role).terms.front().source)) return true;
    }
  }
  return false;
}

bool Runner::needs_attend(int layer) const {
  for (const BatchEntry& entry : state_->entries()) {
    if (entry.rows.decodes() || entry.tokens > entry.prompt.observe_from) return true;
    if (state_->grows_indices(entry, layer) || state_->wants_factors(entry, layer)) return true;
  }
  return false;
}

void Runner::append(const RowsToAppend& rows) {
  State& state = *state_;
  BatchEntry& entry = state.batch[static_cast<std::size_t>(rows.batch_index)];
  state.guarded(entry, [&] { state.append(entry, rows); });
}

void Runner::State::append(const BatchEntry& entry, const RowsToAppend& rows) const {
  const kernels::HeadView view = cache->view(entry.rows.sequence, rows.layer, rows.kv_head);
  kernels::AppendItem item;
  item.head = &view;
  item.k = rows.k;
  item.v = rows.v;
  item.row_stride = rows.stride;
  item.slot = first_slot(entry, view) + rows.first;
  item.rows = rows.rows;
  kernels::append(cache->shape().format, item);
}

void Runner::appended(int layer, int nth) {
  State& state = *state_;
  if (!state.last_to_arrive(nth) || state.stopped.load(std::memory_order_relaxed)) return;
  state.guarded([&] {
    for (BatchEntry& entry : state.entries()) {
      if (entry.failure) continue;
      for (int head = 0; head < state.shape.kv_heads; ++head) {
        entry.views[static_cast<std::size_t>(head)] = state.cache->view(entry.rows.sequence, layer, head);
      }
      if (!entry.rows.decodes()) state.guarded(entry, [&] { state.open_prompt_layer(entry, layer); });
    }
    if (needs_select(layer)) {
      state.build_select(layer);
    } else {
      state.build_attend(layer);
    }
  });
}

double Runner::seconds() const {
  return state_->seconds;
}

void Runner::select(int layer, const float* q, int ith, int nth) {
  State& state = *state_;
  const Stopwatch watch(ith == 0 ? &state.seconds : nullptr);
  if (!state.stopped.load(std::memory_order_relaxed)) {
    const Item* item = state.select_work.take();
    while (item != nullptr) {
      const Item* next = nullptr;
      state.guarded(state.batch[static_cast<std::size_t>(item->batch)], [&] {
        switch (item->kind) {
          case Item::Kind::score:
            next = state.select_work.take_ahead(nth);
            state.run_score(*item, next, layer, q, ith);
            break;
          case Item::Kind::search:
            state.run_search(*item, layer, q, ith);
            break;
          case Item::Kind::choose:
            state.select_layer(layer, item->batch, ith);
            break;
          case Item::Kind::factor:
            state.factor_keys(*item, layer);
            break;
          default:
            state.run_tile(*item, layer, q, ith);
        }
      });
      item = next != nullptr ? next : state.select_work.take();
    }
  }
  if (!state.last_to_arrive(nth) || state.stopped.load(std::memory_order_relaxed)) return;
  state.guarded([&] {
    state.recall_sets(layer);
    state.build_attend(layer);
  });
}

void Runner::attend(int layer, const float* q, float* out, int ith, int nth) {
  State& state = *state_;
  const Stopwatch watch(ith == 0 ? &state.seconds : nullptr);
  if (!state.stopped.load(std::memory_order_relaxed)) {
    const Item* item = state.attend_work.take();
    while (item != nullptr) {
      const Item* next = nullptr;
      state.guarded(state.batch[static_cast<std::size_t>(item->batch)], [&] {
        if (item->kind == Item::Kind::prefill) return state.run_prompt(*item, layer, q, out, ith);
        if (item->kind == Item::Kind::grow) return state.grow_index(*item, layer);
        if (item->kind == Item::Kind::factor) return state.factor_keys(*item, layer);
        if (item->kind == Item::Kind::audit) return state.run_audit(*item, layer, q, ith);
        if (item->kind == Item::Kind::range) {
          state.run_range(*item, q, ith);
        } else if (item->kind == Item::Kind::verify) {
          state.run_verify(*item, q, ith);
        } else if (item->kind == Item::Kind::mean_token) {
          state.run_mean_token(*item, layer, q, ith);
        } else if (state.attend_work.unit(item->unit).key_rank > 0) {
          state.run_low_rank(*item, layer, q, ith);
        } else {
          next = state.attend_work.take_ahead(nth);
          kernels::AttendItem work = state.kernel_item(*item, q);
          kernels::AttendItem following;
          if (next != nullptr && next->kind == Item::Kind::attend) {
            following = state.kernel_item(*next, q);
            work.next = &following;
          }
          kernels::attend(state.cache->shape().format, work);
        }
        const int parts = item->kind == Item::Kind::verify ? split_count(item->end - item->begin) : 1;
        if (state.attend_work.finish(item->unit, parts)) state.combine_unit(layer, item->unit, q, out, ith);
      });
      item = next != nullptr ? next : state.attend_work.take();
    }
  }
  if (!state.last_to_arrive(nth) || state.stopped.load(std::memory_order_relaxed)) return;
  if (observer) state.guarded([&] { state.observe(layer, q, observer); });
  state.silence(out);
}

/// Rows of a sequence that failed go on through the model as zeros, not as what lay there.
void Runner::State::silence(float* out) {
  const auto width = static_cast<std::size_t>(shape.heads) * static_cast<std::size_t>(shape.head_dim);
  for (const BatchEntry& entry : entries()) {
    if (!entry.failure) continue;
    std::fill_n(out + static_cast<std::size_t>(entry.rows.first_row) * width,
                static_cast<std::size_t>(entry.rows.rows) * width, 0.0F);
  }
}

bool Runner::began() const {
  return state_->began;
}

std::exception_ptr Runner::failure(std::size_t index) const {
  return state_->batch[index].failure;
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
    for (const double seconds : entry.index_build_s) entry.counters.index_build_s += seconds;
    if (entry.failure) {
      entry.counters = {};
    } else if (entry.rows.decodes()) {
      for (const std::size_t bytes : entry.index_bytes) entry.counters.index_bytes += static_cast<std::int64_t>(bytes);
      for (const double seconds : entry.audit_s) entry.counters.audit_s += seconds;
      (entry.sparse ? entry.counters.sparse_steps : entry.counters.dense_steps) = 1;
      state.end_feedback(entry);
      State::end_coverage(entry);
      if (entry.rows.kind != PassKind::draft) ++entry.rows.state->decode_steps;
    } else if (entry.rows.kind == PassKind::verify) {
      entry.counters.dense_steps = 1;
    } else if (entry.learns()) {
      if (entry.ends_prompt) entry.rows.state->prompt_tokens = entry.tokens;
    }
    state.counters.push_back(entry.counters);
  }
  state.began = false;
  return state.counters;
}

}  // namespace glimpse::attention
