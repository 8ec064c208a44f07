// What attention read: sums over decode steps, and the sets of one step. Values; any thread, each value on one at a
// time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "glimpse/attention/records.h"
#include "glimpse/plan/plan.h"

namespace glimpse::engine {

using attention::DenseReason;
using attention::DenseSteps;

/// What attention read while decoding, counted from the kernels' work lists.
struct AttentionStats {
  std::int64_t k_rows = 0, v_rows = 0;              ///< rows read, all layers and KV heads
  std::int64_t dense_k_rows = 0, dense_v_rows = 0;  ///< what dense attention would have read
  std::int64_t bytes_read = 0;                      ///< of K, V, key indices and low-rank factors
  std::int64_t dense_bytes = 0;                     ///< of K and V that dense attention would have read
  std::int64_t index_bytes = 0;                     ///< of bytes_read: key indices alone
  std::int64_t dense_steps = 0, sparse_steps = 0;   ///< sparse: some head read less than every token
  DenseSteps dense_by{};                            ///< dense_steps by DenseReason
  /// Softmax mass that a head's set captured, the mean over the group: of sets chosen from exact scores, and of every
  /// head in audited steps.
  struct Mass {
    double mean = 1, least = 1;
    std::int64_t sets = 0;  ///< 0: none is known
    Mass& operator+=(const Mass& other);
  };
  Mass coverage, audited;
  std::int64_t audits = 0;
  double audit_s = 0;  ///< of all threads together, this sequence's alone; part of the decoding time
  /// A host tier: pages that a set needed and that were brought back, or found resident; the most that one head kept
  /// resident in a sparse step, none without a tier.
  std::int64_t recalled_pages = 0, recalled_bytes = 0, resident_hits = 0;
  std::optional<std::int64_t> resident_tokens;
  std::int64_t index_memory = 0;  ///< bytes that key indices and low-rank factors hold
  double index_build_s = 0;       ///< that building them took, of all threads together
  /// Sums up; of resident_tokens and index_memory the larger stays.
  AttentionStats& operator+=(const AttentionStats& other);
  /// bytes_read over dense_bytes, the share that every report gives; 1 before the first decoded token. More than 1
  /// where sets cost more than they save: to choose them reads K or an index too, and query heads with sets of their
  /// own read a row once each.
  double kept_ratio() const;
};

/// What one KV head read and handed on in one decode step. Lists are valid during the callback.
struct SetTrace {
  std::int64_t step = 0;      ///< decode steps of the sequence before this one
  std::int64_t position = 0;  ///< of the token whose query attended
  int layer = 0, kv_head = 0;
  plan::RoleKind role = plan::RoleKind::dense;
  std::int64_t budget = 0;
  bool reads_all = false;                                 ///< all tokens up to `position`
  std::span<const std::int32_t> tokens;                   ///< positions read, unless reads_all
  std::span<const std::vector<std::int32_t>> query_sets;  ///< a set per query head, where the plan makes them
  bool publishes = false, publishes_all = false;
  std::span<const std::int32_t> published;
  std::span<const float> query;    ///< [g, d] after RoPE
  std::optional<double> coverage;  ///< softmax mass of what was read, the mean over the group; audited steps alone
};

}  // namespace glimpse::engine
