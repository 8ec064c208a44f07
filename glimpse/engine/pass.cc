// One forward pass over parts of several sequences, and what it leaves in them.
#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/engine/state.h"

namespace glimpse::engine {
namespace {

SetTrace trace_of(const attention::HeadRecord& record, const ActiveSequence& sequence, const plan::ModelShape& shape) {
  SetTrace trace;
  trace.step = sequence.steps;
  trace.position = record.position;
  trace.layer = record.layer;
  trace.kv_head = record.kv_head;
  trace.role = record.role->kind;
  trace.budget = record.budget;
  trace.reads_all = record.reads_all;
  trace.tokens = record.tokens;
  trace.query_sets = record.query_sets;
  if (record.published != nullptr) {
    trace.publishes = true;
    trace.publishes_all = record.published->everything;
    if (record.published->lists.size() == 1) {
      trace.published = record.published->lists.front();
    } else {
      trace.query_sets = record.published->lists;
    }
  }
  trace.query = {record.query, static_cast<std::size_t>(shape.group()) * static_cast<std::size_t>(shape.head_dim)};
  return trace;
}

AttentionStats::Mass mass_of(const attention::Coverage& coverage) {
  if (coverage.count == 0) return {};
  return {coverage.mean(), coverage.least, coverage.count};
}

AttentionStats stats_of(const attention::ReadCounters& counters, std::int64_t row_bytes) {
  AttentionStats stats;
  stats.k_rows = counters.k_rows;
  stats.v_rows = counters.v_rows;
  stats.dense_k_rows = counters.dense_k_rows;
  stats.dense_v_rows = counters.dense_v_rows;
  stats.bytes_read = (counters.k_rows - counters.low_rank_rows + counters.v_rows) * row_bytes +
                     counters.low_rank_bytes + counters.index_bytes;
  stats.index_bytes = counters.index_bytes;
  stats.dense_steps = counters.dense_steps;
  stats.sparse_steps = counters.sparse_steps;
  stats.coverage = mass_of(counters.coverage);
  stats.audited = mass_of(counters.audited);
  stats.audits = counters.audits;
  stats.recalled_pages = counters.recalled_pages;
  stats.recalled_bytes = counters.recalled_bytes;
  stats.resident_hits = counters.resident_hits;
  stats.resident_tokens = counters.resident_tokens;
  return stats;
}

}  // namespace

void Engine::State::observe_if_wanted() {
  const bool wanted = std::any_of(parts.begin(), parts.end(),
                                  [](const PassPart& part) { return part.decode && part.sequence->on_sets; });
  if (wanted == observed) return;
  observed = wanted;
  if (!wanted) {
    executor->set_observer({});
    return;
  }
  executor->set_observer([this](const attention::HeadRecord& record) {
    const ActiveSequence& sequence = *parts[static_cast<std::size_t>(record.batch_index)].sequence;
    if (sequence.on_sets) sequence.on_sets(trace_of(record, sequence, shape()));
  });
}

void Engine::State::remember(ActiveSequence& sequence, std::span<const Token> appended) const {
  for (const Token token : appended) {
    const Token before = sequence.tokens.empty() ? -1 : sequence.tokens.back();
    sequence.attention.boundaries.push_back(boundaries.classify(before, token));
    sequence.tokens.push_back(token);
  }
}

/// A pass that fails leaves no trace of its tokens.
exec::StepResult Engine::State::forward(const exec::StepBatch& batch) {
  try {
    return executor->forward(batch);
  } catch (...) {
    for (const PassPart& part : parts) {
      if (!part.corrects) part.sequence->forget_after(static_cast<std::size_t>(part.sequence->length));
    }
    throw;
  }
}

std::size_t Engine::State::chunk_rows(const plan::Plan& plan) const {
  const auto chunk = static_cast<std::size_t>(options.prefill_chunk);
  if (!plan.prefill.sparse) return chunk;
  const auto tile = static_cast<std::size_t>(plan.prefill.tile_tokens(plan.shape.group()));
  return std::max(chunk / tile, std::size_t{1}) * tile;
}

void Engine::State::correct(ActiveSequence& sequence, std::int64_t count) {
  const std::span<const Token> all(sequence.tokens);
  const auto chunk = static_cast<std::size_t>(options.prefill_chunk);
  for (auto first = static_cast<std::size_t>(sequence.length - count); first < all.size(); first += chunk) {
    PassPart part{&sequence, all.subspan(first, std::min(chunk, all.size() - first))};
    part.corrects = true;
    part.logits = PassPart::Logits::none;
    parts.assign(1, part);
    run();
  }
}

std::span<const float> Engine::State::run() {
  tokens.clear();
  rows.clear();
  output_rows.clear();
  for (const PassPart& part : parts) {
    attention::SequenceRows entry;
    entry.sequence = part.sequence->id;
    entry.plan = &part.sequence->plan;
    entry.state = &part.sequence->attention;
    entry.first_row = static_cast<int>(tokens.size());
    entry.rows = static_cast<int>(part.tokens.size());
    entry.decode = part.decode;
    entry.corrects = part.corrects;
    entry.verifies = part.verifies;
    entry.dense = part.dense;
    entry.audit = part.audit;
    entry.committed = part.committed;
    entry.position = part.sequence->length;
    entry.prompt_end = part.prompt_end;
    if (part.corrects) {
      entry.position = part.tokens.data() - part.sequence->tokens.data();
    } else {
      remember(*part.sequence, part.tokens);
    }
    rows.push_back(entry);
    tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
    const auto end = static_cast<std::int32_t>(tokens.size());
    if (part.logits == PassPart::Logits::last) output_rows.push_back(end - 1);
    if (part.logits == PassPart::Logits::all) {
      for (std::int32_t row = entry.first_row; row < end; ++row) output_rows.push_back(row);
    }
  }
  observe_if_wanted();
  const double audited = executor->audit_seconds();
  const exec::StepResult result = forward({tokens, rows, output_rows});
  const double audit_s = executor->audit_seconds() - audited;
  const auto row_bytes = static_cast<std::int64_t>(cache->shape().format.read_bytes());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    ActiveSequence& sequence = *parts[i].sequence;
    sequence.stats.index_build_s += result.counters[i].index_build_s;
    sequence.stats.index_memory = static_cast<std::int64_t>(sequence.attention.index_memory());
    if (parts[i].corrects) continue;
    sequence.length += static_cast<std::int64_t>(parts[i].tokens.size());
    sequence.logits.clear();
    if (!parts[i].decode && !parts[i].verifies) continue;
    attention::ReadCounters counters = result.counters[i];
    if (parts[i].verifies || parts[i].committed >= 0) {  // what dense decoding would have read is known when committed
      counters.dense_k_rows = counters.dense_v_rows = 0;
    } else {
      ++sequence.steps;
    }
    const AttentionStats pass = stats_of(counters, row_bytes);
    sequence.stats += pass;
    if (parts[i].audit) sequence.stats.audit_s += audit_s;
    sequence.last_bytes = pass.bytes_read;
  }
  return result.logits;
}

}  // namespace glimpse::engine
