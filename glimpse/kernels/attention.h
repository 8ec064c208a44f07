// The attention arithmetic of decoding and prefill on the CPU, on views. No allocation, nothing global, no model
// type; workspace is passed in. Every function computes one work item on the calling thread; items are independent
// and may run on any threads in any order with the same bits (each writes its own place). `ref` (kernels/ref) has
// the same functions in plain loops with double accumulators.
//
// Shapes stand in brackets. g = query heads of the group, d = head dimension. Scores are q.k * scale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "glimpse/kernels/views.h"

namespace glimpse::kernels {

/// Tokens of a dense work item and entries of a gathered one. Fixed, so that results do not depend on threads.
inline constexpr int kSplitTokens = 512;

/// One partial result of one query head: `out` normalised, and the log-sum-exp of its scores (-inf: nothing read).
/// Stored as [g, d] floats followed by [g] floats: partial_floats(g, d) in all.
constexpr std::size_t partial_floats(int group, int dim) {
  return static_cast<std::size_t>(group) * (static_cast<std::size_t>(dim) + 1);
}

/// The number of query heads in a group is not bounded in any of these functions.

/// Attend g queries over slots [begin, end) of a head, or over list[begin..end) when a list is given: one pass over
/// K and V for all g. Freed slots (positions[slot] == -1) are skipped.
struct AttendItem {
  const HeadView* head = nullptr;
  const float* query = nullptr;  ///< [g, d]
  int group = 1;                 ///< g
  float scale = 1;
  std::int32_t begin = 0, end = 0;     ///< at most kSplitTokens apart
  const std::int32_t* list = nullptr;  ///< ascending slots, or null for all
  float* partial = nullptr;            ///< out: [g, d] then [g]
  float* scores =
      nullptr;  ///< out, optional: score of entry i of query j at scores[j * score_stride + i], i in [begin, end)
  std::size_t score_stride = 0;
  /// A hint: what this thread attends next, of the same format. Its first rows are fetched meanwhile.
  const AttendItem* next = nullptr;
};
void attend(const KvFormat& format, const AttendItem& item);

/// Rows of one pass that are computed as each would be alone, bit for bit: of a sequence here, and the products with
/// weights (exec).
inline constexpr int kFewRows = 5;

/// Attend the queries of a few rows that follow each other in a sequence, which share each read of K and V. Row r sits
/// at slot first_slot + r and sees slots [begin, min(end, first_slot + r + 1)), freed ones excepted: of each
/// kSplitTokens of them it gets the bits that attend gives it alone.
struct AttendRowsItem {
  const HeadView* head = nullptr;
  const float* query = nullptr;  ///< row r, query head j at query[r * query_stride + j * d ..]
  std::size_t query_stride = 0;
  int group = 1;  ///< g
  int rows = 1;   ///< 1 to kFewRows
  float scale = 1;
  std::int32_t first_slot = 0;
  std::int32_t begin = 0, end = 0;  ///< begin: a multiple of kSplitTokens
  float* partial = nullptr;         ///< out: for each kSplitTokens begun, as attend's with [rows, g] for its group
};
/// Bytes of workspace for rows * g queries; any alignment.
std::size_t attend_rows_workspace(const KvFormat& format, int queries);
void attend_rows(const KvFormat& format, const AttendRowsItem& item, std::span<std::byte> workspace);

/// The scores alone of slots [begin, end): reads K, not V. Freed slots score -inf.
struct ScoreItem {
  const HeadView* head = nullptr;
  const float* query = nullptr;  ///< [g, d]
  int group = 1;
  float scale = 1;
  std::int32_t begin = 0, end = 0;
  float* scores = nullptr;  ///< out: scores[j * score_stride + i]
  std::size_t score_stride = 0;
  /// A hint, as in AttendItem; its head and its slots are what matters.
  const ScoreItem* next = nullptr;
};
void score(const KvFormat& format, const ScoreItem& item);

/// Merges partials in order: out[j] = sum_p exp(lse[p][j] - lse[j]) * out[p][j]. `partials` are `count` runs of
/// partial_floats(group, dim) floats, one after the other. Nothing read at all gives zeros. Writes [g, d] at `out`.
void combine(const float* partials, int count, int group, int dim, float* out);

/// log-sum-exp over [count] scores; -inf for none.
float log_sum_exp(std::span<const float> scores);

/// pooled[i] = mean over g of exp(scores[j, i] - lse[j]): the group's mean probability (post-softmax pooling).
void pool_mean_probability(const float* scores, std::size_t stride, const float* lse, int group,
                           std::span<float> pooled);
/// pooled[i] = mean (max) over g of scores[j, i].
void pool_mean_score(const float* scores, std::size_t stride, int group, std::span<float> pooled);
void pool_max_score(const float* scores, std::size_t stride, int group, std::span<float> pooled);
/// pooled[i] = max over g of exp(scores[j, i] - lse[j]).
void pool_max_probability(const float* scores, std::size_t stride, const float* lse, int group,
                          std::span<float> pooled);

/// Exact top-k: writes the indices of the k largest of `scores` to `out` in ascending index order; equal scores: the
/// lower index wins; -inf is never chosen (fewer than k may be written), NaN counts as -inf. Returns the number
/// written. `workspace` needs select_workspace(scores.size()) bytes.
std::size_t select_workspace(std::size_t count);
std::size_t select_top_k(std::span<const float> scores, std::size_t k, std::span<std::int32_t> out,
                         std::span<std::byte> workspace);

/// Smallest k whose k largest of `probabilities` sum (double) to at least `mass`; and the number >= threshold.
std::size_t count_for_mass(std::span<const float> probabilities, double mass, std::span<std::byte> workspace);
std::size_t count_above(std::span<const float> probabilities, float threshold);

/// Scores of blocks of `block` tokens: the max over a block's tokens. out has ceil(n / block) entries.
void block_max(std::span<const float> scores, int block, std::span<float> out);

/// Writes `rows` rows of K and V ([rows, d] floats, row stride in floats) to slots [slot, slot + rows) of a head.
struct AppendItem {
  const HeadView* head = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  std::size_t row_stride = 0;  ///< floats between rows
  std::int32_t slot = 0;
  std::int32_t rows = 0;
};
void append(const KvFormat& format, const AppendItem& item);

/// Prefill: a tile of query rows of one (sequence, KV head), online softmax. Row r (0-based) sits at slot
/// first_slot + r; it sees the slots of `list` and slots [own_begin, first_slot + r], freed ones excepted: without a
/// list and from 0 that is every key up to its own; and of all these only those in [begin, end). Rows of the cache that
/// nothing sees are not read. K and V of the rows themselves are appended before. Writes row r, query head j at out[r *
/// out_stride + j * d ..]; a row that sees nothing gets zeros.
inline constexpr std::int32_t kNoEnd = std::numeric_limits<std::int32_t>::max();
struct PrefillItem {
  const HeadView* head = nullptr;
  const float* query = nullptr;  ///< row r, query head j at query[r * query_stride + j * d ..]
  std::size_t query_stride = 0;
  float* out = nullptr;
  std::size_t out_stride = 0;
  int group = 1;
  float scale = 1;
  std::int32_t first_slot = 0;
  std::int32_t rows = 0;               ///< 1 to prefill_tile_rows(group)
  std::int32_t own_begin = 0;          ///< at most first_slot
  const std::int32_t* list = nullptr;  ///< [list_count] ascending slots before own_begin, or null
  std::int32_t list_count = 0;
  std::int32_t begin = 0, end = kNoEnd;
  float* lse = nullptr;  ///< [rows, g] log-sum-exp of what each query saw (-inf: nothing); out, optional in prefill
};
/// Query rows that one tile takes for a group of g: a fixed function of g.
int prefill_tile_rows(int group);
/// Enough for each of the three functions below.
std::size_t prefill_workspace(const KvFormat& format, int group);
void prefill(const KvFormat& format, const PrefillItem& item, std::span<std::byte> workspace);

/// The log-sum-exps alone, the same bits that prefill writes: reads K, not V; `out` is not used.
void prefill_lse(const KvFormat& format, const PrefillItem& item, std::span<std::byte> workspace);

/// What the rows of a tile give to each key: for slots i in [begin, end),
///   sums[i - begin] += sum over rows r that see i, and query heads j, of weights[r] * exp(score - lse[r, j]).
/// tile.lse is read: the log-sum-exps of the same rows from prefill or prefill_lse. The order of the sum is fixed by
/// the tile alone: any split of a range gives the same bits, and so do tiles taken one after the other.
struct ColumnSumsItem {
  PrefillItem tile;                ///< `out` is not used, and its range is the one below
  const float* weights = nullptr;  ///< [rows]; null: 1 each
  std::int32_t begin = 0, end = 0;
  float* sums = nullptr;  ///< [end - begin], added to
};
void prefill_column_sums(const KvFormat& format, const ColumnSumsItem& item, std::span<std::byte> workspace);

/// The instruction set that this process uses for all of the above, e.g. "AVX2", "AVX-512 + bf16".
const char* instruction_set();
/// Floats of one of its vectors.
int vector_floats();

}  // namespace glimpse::kernels
