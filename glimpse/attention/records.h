// What attention says of a pass when it has run: counts of what was read, and what each head read and handed on. The
// same for every device. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "glimpse/attention/sets.h"
#include "glimpse/plan/plan.h"

namespace glimpse::attention {

/// Softmax mass that sets captured, from 0 to 1 each: of a KV head's set the mean over the group's queries.
struct Coverage {
  double sum = 0;
  std::int64_t count = 0;  ///< sets
  double least = 1;
  void add(double mass);
  Coverage& operator+=(const Coverage& other);
  double mean() const { return count == 0 ? 1 : sum / static_cast<double>(count); }
};

/// Why a step read every token.
enum class DenseReason : std::uint8_t {
  method,   ///< the plan reads everything at any length
  context,  ///< the context is shorter than the plan's least (`--attn-min-ctx`)
  budget,   ///< what the budget allows was all there was
  verify,   ///< a verification of drafts (`--lossless`)
  drafts,   ///< a lossless request for which drafting does not pay
};
inline constexpr int kDenseReasons = 5;
/// Steps by reason.
using DenseSteps = std::array<std::int64_t, kDenseReasons>;

/// Rows of K and V that a pass read, and what dense attention would have read, in decode rows alone.
struct ReadCounters {
  std::int64_t k_rows = 0, v_rows = 0;
  std::int64_t dense_k_rows = 0, dense_v_rows = 0;
  std::int64_t index_bytes = 0;     ///< of key indices, read instead of K
  std::int64_t low_rank_rows = 0;   ///< of k_rows: made from factors, not read from the cache
  std::int64_t low_rank_bytes = 0;  ///< of the factors
  // A host tier: pages that sets needed and that came back, or were there; the most that one head kept resident.
  std::int64_t recalled_pages = 0, recalled_bytes = 0, resident_hits = 0;
  std::optional<std::int64_t> resident_tokens;     ///< none: no head had one
  std::int64_t dense_steps = 0, sparse_steps = 0;  ///< sparse: some head read less than every token
  DenseSteps dense_by{};                           ///< dense_steps by DenseReason
  Coverage coverage;                               ///< of sets chosen from exact scores of all tokens
  Coverage audited;                                ///< of every head that forgot nothing, in audited steps
  std::int64_t audits = 0;                         ///< such steps
  double audit_s = 0;                              ///< what they took, of all threads together
  double index_build_s = 0;  ///< what building indices and factors took, of all the host's threads; prompts too
  void add_dense_step(DenseReason reason);
  ReadCounters& operator+=(const ReadCounters& other);
};

/// What one head of one sequence did in one decode step; lists are valid during the call.
struct HeadRecord {
  int batch_index = 0;  ///< of SequenceRows in begin()
  int layer = 0, kv_head = 0;
  std::int64_t position = 0;
  plan::RoleKind role = plan::RoleKind::dense;
  std::int64_t budget = 0;                                ///< tokens allowed
  bool reads_all = false;                                 ///< no list: every token up to `position`
  std::span<const std::int32_t> tokens;                   ///< positions read (union over query heads)
  std::span<const std::vector<std::int32_t>> query_sets;  ///< SetPer::query_head: one each
  const PublishedSet* published = nullptr;                ///< null: nothing handed on
  std::optional<double> coverage;                         ///< softmax mass of what was read; audited steps alone
  const float* query = nullptr;                           ///< [g, d], after RoPE
};

}  // namespace glimpse::attention
