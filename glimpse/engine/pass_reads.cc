#include "glimpse/engine/pass_reads.h"

namespace glimpse::engine {
namespace {

AttentionStats::Mass mass_of(const attention::Coverage& coverage) {
  if (coverage.count == 0) return {};
  return {coverage.mean(), coverage.least, coverage.count};
}

}  // namespace

AttentionStats stats_of(const attention::ReadCounters& counters, std::int64_t row_bytes) {
  AttentionStats stats;
  stats.k_rows = counters.k_rows;
  stats.v_rows = counters.v_rows;
  stats.dense_k_rows = counters.dense_k_rows;
  stats.dense_v_rows = counters.dense_v_rows;
  stats.bytes_read = (counters.k_rows - counters.low_rank_rows + counters.v_rows) * row_bytes +
                     counters.low_rank_bytes + counters.index_bytes;
  stats.dense_bytes = (counters.dense_k_rows + counters.dense_v_rows) * row_bytes;
  stats.index_bytes = counters.index_bytes;
  stats.dense_steps = counters.dense_steps;
  stats.sparse_steps = counters.sparse_steps;
  stats.dense_by = counters.dense_by;
  stats.coverage = mass_of(counters.coverage);
  stats.audited = mass_of(counters.audited);
  stats.audits = counters.audits;
  stats.audit_s = counters.audit_s;
  stats.recalled_pages = counters.recalled_pages;
  stats.recalled_bytes = counters.recalled_bytes;
  stats.resident_hits = counters.resident_hits;
  stats.resident_tokens = counters.resident_tokens;
  return stats;
}

SetTrace trace_of(const attention::HeadRecord& record, const ActiveSequence& sequence, const plan::ModelShape& shape) {
  SetTrace trace;
  trace.step = sequence.steps;
  trace.position = record.position;
  trace.layer = record.layer;
  trace.kv_head = record.kv_head;
  trace.role = record.role;
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
  trace.coverage = record.coverage;
  trace.query = {record.query, static_cast<std::size_t>(shape.group()) * static_cast<std::size_t>(shape.head_dim)};
  return trace;
}

}  // namespace glimpse::engine
