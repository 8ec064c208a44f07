#include "glimpse/attention/records.h"

#include <algorithm>

namespace glimpse::attention {

void Coverage::add(double mass) {
  sum += mass;
  ++count;
  least = std::min(least, mass);
}

Coverage& Coverage::operator+=(const Coverage& other) {
  sum += other.sum;
  count += other.count;
  least = std::min(least, other.least);
  return *this;
}

void ReadCounters::add_dense_step(DenseReason reason) {
  ++dense_steps;
  ++dense_by[static_cast<std::size_t>(reason)];
}

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
  for (std::size_t i = 0; i < dense_by.size(); ++i) dense_by[i] += other.dense_by[i];
  sparse_steps += other.sparse_steps;
  index_build_s += other.index_build_s;
  return *this;
}

}  // namespace glimpse::attention
