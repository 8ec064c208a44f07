#include "glimpse/engine/attention_stats.h"

#include <algorithm>

namespace glimpse::engine {

AttentionStats::Mass& AttentionStats::Mass::operator+=(const Mass& other) {
  if (other.sets == 0) return *this;
  const std::int64_t all = sets + other.sets;
  mean = (mean * static_cast<double>(sets) + other.mean * static_cast<double>(other.sets)) / static_cast<double>(all);
  least = std::min(least, other.least);
  sets = all;
  return *this;
}

AttentionStats& AttentionStats::operator+=(const AttentionStats& other) {
  k_rows += other.k_rows;
  v_rows += other.v_rows;
  dense_k_rows += other.dense_k_rows;
  dense_v_rows += other.dense_v_rows;
  bytes_read += other.bytes_read;
  dense_bytes += other.dense_bytes;
  index_bytes += other.index_bytes;
  dense_steps += other.dense_steps;
  sparse_steps += other.sparse_steps;
  for (std::size_t i = 0; i < dense_by.size(); ++i) dense_by[i] += other.dense_by[i];
  coverage += other.coverage;
  audited += other.audited;
  audits += other.audits;
  audit_s += other.audit_s;
  recalled_pages += other.recalled_pages;
  recalled_bytes += other.recalled_bytes;
  resident_hits += other.resident_hits;
  if (other.resident_tokens) resident_tokens = std::max(resident_tokens.value_or(0), *other.resident_tokens);
  index_memory = std::max(index_memory, other.index_memory);
  index_build_s += other.index_build_s;
  return *this;
}

double AttentionStats::kept_ratio() const {
  return dense_bytes == 0 ? 1.0 : static_cast<double>(bytes_read) / static_cast<double>(dense_bytes);
}

}  // namespace glimpse::engine
