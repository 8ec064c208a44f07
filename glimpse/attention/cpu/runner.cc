#include "glimpse/attention/cpu/runner.h"

#include <algorithm>

#include "glimpse/attention/cpu/audit.h"
#include "glimpse/attention/cpu/decode.h"
#include "glimpse/attention/cpu/feed.h"
#include "glimpse/attention/cpu/head_records.h"
#include "glimpse/attention/cpu/low_rank.h"
#include "glimpse/attention/cpu/pass.h"
#include "glimpse/attention/cpu/prompt.h"
#include "glimpse/attention/cpu/read_counts.h"
#include "glimpse/attention/cpu/select.h"
#include "glimpse/attention/cpu/tier.h"
#include "glimpse/attention/cpu/tiles.h"
#include "glimpse/attention/give_slots.h"
#include "glimpse/base/error.h"

namespace glimpse::attention {
namespace {

void open_entry(Pass& pass, BatchEntry& entry, const SequenceRows& rows) {
  const auto kv_heads = static_cast<std::size_t>(pass.shape.kv_heads);
  check(rows.program->shape().head_dim == pass.shape.head_dim, "a program is made for the model's head dimension");
  entry.rows = rows;
  entry.failure = nullptr;
  entry.tokens = rows.position + rows.rows;
  entry.dense = reads_everything(rows);
  entry.ends_prompt = ends_prompt(rows);
  entry.counters = {};
  entry.lse.resize(static_cast<std::size_t>(pass.shape.heads));
  entry.index_bytes.assign(kv_heads, 0);
  entry.known.assign(entry.dense ? 0 : static_cast<std::size_t>(pass.shape.layers) * kv_heads, {});
  entry.audited.assign(rows.audit ? static_cast<std::size_t>(pass.shape.layers) * kv_heads : 0, {});
  entry.index_build_s.assign(kv_heads + 1, 0);
  entry.audit_s.assign(kv_heads, 0);
  if (entry.feeds() && rows.state->heat.any()) {
    entry.heat_feed.resize(static_cast<std::size_t>(pass.shape.layers) * kv_heads);
    for (auto& feed : entry.heat_feed) feed.clear();
  }
  if (rows.state->wants_low_rank() && (!rows.decodes() || !entry.dense)) {
    check(pass.shape.rotation != nullptr, "keys of low rank are turned by somebody");
    pass.shape.rotation->prepare(rows.decodes() ? rows.state->prompt_tokens : std::max(rows.prompt_end, entry.tokens));
  }
  // In steps, so that a decoded token seldom makes the tables grow.
  constexpr std::int64_t kStep = 1024;
  const std::int64_t positions = (std::max(rows.prompt_end, entry.tokens) + kStep - 1) / kStep * kStep;
  for (const auto& gates : rows.state->gates()) gates->prepare(positions);
  if (rows.decodes()) {
    forget(*pass.cache, rows, pass.forget);
  } else {
    open_prompt(pass, entry);
  }
}

void size_scratch(Pass& pass) {
  std::int64_t longest = 0;
  bool any_prefill = false;
  bool any_select = false;
  for (const BatchEntry& entry : pass.entries()) {
    longest = std::max(longest, entry.tokens);
    any_prefill |= !entry.rows.decodes();
    any_select |= !entry.dense || entry.feeds() || entry.prompt.tile_tokens > 0;
  }
  if (any_prefill) {
    const kernels::KvFormat& format = pass.cache->shape().format;
    const std::size_t bytes = std::max(kernels::prefill_workspace(format, pass.group),
                                       kernels::attend_rows_workspace(format, kernels::kFewRows * pass.group));
    for (ThreadScratch& thread : pass.threads) {
      if (thread.prefill.size() < bytes) thread.prefill.resize(bytes);
    }
  }
  if (any_select) {
    for (ThreadScratch& thread : pass.threads) thread.selection.reserve(static_cast<std::size_t>(longest));
    pass.score_stride = (static_cast<std::size_t>(longest) + 1023) / 1024 * 1024;
  }
  if (pass.batch_size > pass.layer_remaining_size) {
    pass.layer_remaining = std::make_unique<std::atomic<int>[]>(pass.batch_size);
    pass.layer_remaining_size = pass.batch_size;
  }
}

/// Where the rows of the pass lie: those of an entry have their slots.
void open_tables(Pass& pass) {
  RowTables& tables = pass.tables;
  const auto kv_heads = static_cast<std::size_t>(pass.shape.kv_heads);
  tables.kv_heads = pass.shape.kv_heads;
  tables.views.resize(pass.batch_size * kv_heads);
  tables.sequence.clear();
  tables.behind.clear();
  for (std::size_t b = 0; b < pass.batch_size; ++b) {
    BatchEntry& entry = pass.batch[b];
    entry.views = std::span(tables.views).subspan(b * kv_heads, kv_heads);
    const std::int64_t behind = pass.cache->length(entry.rows.sequence) - entry.rows.position;
    for (int row = 0; row < entry.rows.rows; ++row) {
      tables.sequence.push_back(static_cast<std::int32_t>(b));
      tables.behind.push_back(static_cast<std::int32_t>(behind - row));
    }
  }
  const bool decodes = std::any_of(pass.entries().begin(), pass.entries().end(),
                                   [](const BatchEntry& entry) { return entry.rows.decodes(); });
  const std::size_t layers = decodes ? static_cast<std::size_t>(pass.shape.layers) : 0;
  tables.reads.resize(layers * tables.sequence.size() * kv_heads);
}

/// Room for what the pass's decoding rows choose.
void open_sets(Pass& pass) {
  int sets = 0;
  std::int64_t capacity = 0;
  for (BatchEntry& entry : pass.entries()) {
    if (!entry.rows.decodes() || entry.dense) continue;
    entry.first_set = sets;
    sets += set_count(*entry.rows.program);
    capacity = std::max(capacity, set_capacity(*entry.rows.program, entry.tokens));
  }
  pass.sets.open(sets, capacity);
}

void append_rows(Pass& pass, const BatchEntry& entry, const RowsToAppend& rows) {
  const kernels::HeadView view = pass.cache->view(entry.rows.sequence, rows.layer, rows.kv_head);
  kernels::AppendItem item;
  item.head = &view;
  item.k = rows.k;
  item.v = rows.v;
  item.row_stride = rows.stride;
  item.slot = pass.first_slot(entry, view) + rows.first;
  item.rows = rows.rows;
  kernels::append(pass.cache->shape().format, item);
}

/// Rows of a sequence that failed go on through the model as zeros, not as what lay there.
void silence(Pass& pass, float* out) {
  const auto width = static_cast<std::size_t>(pass.shape.heads) * static_cast<std::size_t>(pass.shape.head_dim);
  for (const BatchEntry& entry : pass.entries()) {
    if (!entry.failure) continue;
    std::fill_n(out + static_cast<std::size_t>(entry.rows.first_row) * width,
                static_cast<std::size_t>(entry.rows.rows) * width, 0.0F);
  }
}

/// The calling thread takes items and then splits until none is left. What one of them throws ends its sequence's part
/// of the pass.
template <class RunItem, class RunSplit>
void drain(Pass& pass, int threads, const RunItem& run_item, const RunSplit& run_split) {
  if (pass.stopped.load(std::memory_order_relaxed)) return;
  for (const Item* item = pass.items.take(); item != nullptr; item = pass.items.take()) {
    pass.guarded(pass.entry(item->batch), [&] { run_item(*item); });
  }
  pass.work.drain(threads, [&](const Split& split, const Split* next) {
    pass.guarded(pass.entry(pass.work.output(split).batch), [&] { run_split(split, next); });
  });
}

}  // namespace

Runner::Runner(const RunnerShape& shape, kv::Cache& cache) : pass_(std::make_unique<Pass>(shape, cache)) {}
Runner::~Runner() = default;

void Runner::begin(std::span<const SequenceRows> batch) {
  Pass& pass = *pass_;
  pass.began = false;
  pass.failure = nullptr;
  pass.stopped.store(false);
  give_slots(*pass.cache, batch, pass.marks);
  pass.began = true;
  if (pass.batch.size() < batch.size()) pass.batch.resize(batch.size());
  pass.batch_size = batch.size();
  for (std::size_t i = 0; i < batch.size(); ++i) open_entry(pass, pass.batch[i], batch[i]);
  open_tables(pass);
  size_scratch(pass);
  open_sets(pass);
  open_records(pass, static_cast<bool>(on_head));
  pass.counters.clear();
  pass.counters.reserve(batch.size());
  pass.arrived.store(0);
}

bool Runner::needs_select(int layer) const {
  for (const BatchEntry& entry : pass_->entries()) {
    const LayerProgram& program = entry.layer(layer);
    if (entry.rows.decodes()) {
      if (!entry.dense && program.selects_first) return true;
    } else if (entry.prompt.tile_tokens > 0 && !program.selects.empty() && !program.tiles_follow) {
      return true;
    }
  }
  return false;
}

bool Runner::needs_attend(int layer) const {
  for (const BatchEntry& entry : pass_->entries()) {
    if (entry.rows.decodes() || entry.tokens > entry.prompt.observe_from) return true;
    if (grows_indices(*pass_, entry, layer) || wants_factors(entry, layer)) return true;
  }
  return false;
}

void Runner::append(const RowsToAppend& rows) {
  Pass& pass = *pass_;
  BatchEntry& entry = pass.entry(rows.batch_index);
  pass.guarded(entry, [&] { append_rows(pass, entry, rows); });
}

bool Runner::appended(int layer, int nth) {
  Pass& pass = *pass_;
  if (!pass.last_to_arrive(nth) || pass.stopped.load(std::memory_order_relaxed)) return false;
  pass.guarded([&] {
    for (BatchEntry& entry : pass.entries()) {
      if (!entry.failure && entry.stopped()) entry.failure = std::make_exception_ptr(Stopped());
      if (entry.failure) continue;
      for (int head = 0; head < pass.shape.kv_heads; ++head) {
        entry.views[static_cast<std::size_t>(head)] = pass.cache->view(entry.rows.sequence, layer, head);
      }
      if (!entry.rows.decodes()) pass.guarded(entry, [&] { open_prompt_layer(pass, entry, layer); });
    }
    if (needs_select(layer)) {
      build_select(pass, layer);
    } else {
      build_attend(pass, layer);
    }
  });
  return true;
}

int Runner::rows_wanted() const {
  int rows = 0;
  for (const BatchEntry& entry : pass_->entries()) {
    if (!entry.failure) rows = std::max(rows, entry.rows.first_row + entry.rows.rows);
  }
  return rows;
}

double Runner::seconds() const {
  return pass_->seconds;
}

void Runner::select(int layer, const float* q, int ith, int nth) {
  Pass& pass = *pass_;
  const Call call{layer, q, nullptr, ith, nth};
  const Stopwatch watch(ith == 0 ? &pass.seconds : nullptr);
  drain(
      pass, nth,
      [&](const Item& item) {
        if (item.kind == Item::Kind::search) return run_search(pass, call, item);
        if (item.kind == Item::Kind::choose) return select_layer(pass, call, item.batch);
        if (item.kind == Item::Kind::factor) return factor_keys(pass, item, layer);
        run_tile(pass, call, item);
      },
      [&](const Split& split, const Split* next) { run_score(pass, call, split, next); });
  if (!pass.last_to_arrive(nth) || pass.stopped.load(std::memory_order_relaxed)) return;
  pass.guarded([&] {
    recall_sets(pass, layer);
    build_attend(pass, layer);
  });
}

void Runner::attend(int layer, const float* q, float* out, int ith, int nth) {
  Pass& pass = *pass_;
  const Call call{layer, q, out, ith, nth};
  const Stopwatch watch(ith == 0 ? &pass.seconds : nullptr);
  drain(
      pass, nth,
      [&](const Item& item) {
        if (item.kind == Item::Kind::prefill) return run_prompt(pass, call, item);
        if (item.kind == Item::Kind::grow) return grow_index(pass, item, layer);
        if (item.kind == Item::Kind::factor) return factor_keys(pass, item, layer);
        run_audit(pass, call, item);
      },
      [&](const Split& split, const Split* next) { run_split(pass, call, split, next); });
  if (!pass.last_to_arrive(nth) || pass.stopped.load(std::memory_order_relaxed)) return;
  keep_queries(pass, layer, q);
  silence(pass, out);
}

bool Runner::stopped() const {
  const std::span<const BatchEntry> entries = pass_->entries();
  return std::all_of(entries.begin(), entries.end(), [](const BatchEntry& entry) { return entry.stopped(); });
}

void Runner::abandon() {
  for (BatchEntry& entry : pass_->entries()) {
    if (!entry.failure) entry.failure = std::make_exception_ptr(Stopped());
  }
}

bool Runner::began() const {
  return pass_->began;
}

std::exception_ptr Runner::failure(std::size_t index) const {
  return pass_->batch[index].failure;
}

std::span<const ReadCounters> Runner::end() {
  Pass& pass = *pass_;
  if (pass.failure) {
    std::exception_ptr failure;
    std::swap(failure, pass.failure);
    std::rethrow_exception(failure);
  }
  if (on_head) tell_heads(pass, on_head);
  pass.counters.clear();
  for (BatchEntry& entry : pass.entries()) {
    for (const double seconds : entry.index_build_s) entry.counters.index_build_s += seconds;
    if (entry.failure) {
      entry.counters = {};
    } else if (entry.rows.decodes()) {
      for (const std::size_t bytes : entry.index_bytes) entry.counters.index_bytes += static_cast<std::int64_t>(bytes);
      for (const double seconds : entry.audit_s) entry.counters.audit_s += seconds;
      count_reads(pass, entry);
      end_feedback(pass, entry);
      end_coverage(entry);
      if (entry.rows.kind != PassKind::draft) ++entry.rows.state->decode_steps;
    } else if (entry.rows.kind == PassKind::verify) {
      count_reads(pass, entry);
      entry.counters.add_dense_step(DenseReason::verify);
    } else if (entry.learns()) {
      if (entry.ends_prompt) entry.rows.state->prompt_tokens = entry.tokens;
    }
    pass.counters.push_back(entry.counters);
  }
  pass.began = false;
  return pass.counters;
}

}  // namespace glimpse::attention
