// Attention as batched operations over flat tables: what every device implements. An operation covers all rows and
// heads of a layer in one call. The caller decides from plans and lengths alone: no operation returns a count to the
// host, so a device runs them one after the other on its stream without waiting. `ref` (plain loops, double
// accumulators) is what the others are held against, `cpu` (cpu/operations.h) cuts an operation into the items of
// kernels/attention.h, `cuda` (cuda/operations.h) launches it.
//
// Memory: the caller owns all that a struct points to until the operation has run (cpu, ref: at the return; cuda: when
// the stream has passed it). Threads: one at a time calls the operations of one object. Errors: a bad shape is a failed
// check; what a device refuses is said by its own header.
#pragma once

#include <cstdint>

#include "glimpse/kernels/tables.h"

namespace glimpse::kernels {

/// Writes K and V of each row to its slot in every KV head. Rows of one slot do not occur.
template <Place place>
struct AppendOp {
  KvTable<place> cache;
  RowTable<place> rows;
  Pointer<const float, place> k, v;  ///< [R, kv_heads, d]
};

/// Which scores an operation makes or reads: KV head `head` of row `row`.
struct RowHead {
  std::int32_t row = 0, head = 0;
};

/// q.k * scale of every slot that a row sees, for all query heads of the named KV heads: reads K, not V. Freed slots
/// score -inf.
template <Place place>
struct ScoreOp {
  KvTable<place> cache;
  RowTable<place> rows;
  Pointer<const float, place> q;  ///< [R, H, d] after RoPE
  int group = 1;                  ///< g
  float scale = 1;
  Pointer<const RowHead, place> heads;  ///< [count]
  int count = 0;
  ScoreTable<place> out;
};

/// Pages [first, last) of the table of a sequence's KV head.
struct PageRange {
  std::int32_t sequence = 0;  ///< into KvTable::views
  std::int32_t head = 0;
  std::int32_t first = 0, last = 0;
};

/// Bounds of the keys of whole pages (Quest, section 3.3; ArkVale's cuboids): every slot of a page is in use, and none
/// is freed. Where ranges share a page, as those of a fork do, each writes the same.
template <Place place>
struct SummariseOp {
  KvTable<place> cache;
  Pointer<const PageRange, place> ranges;  ///< [count]
  int count = 0;
  std::int32_t most = 0;  ///< pages of a range, at most: launches are sized by it
  SummaryTable<place> out;
};

/// What a row asks of a KV head's bounds: scores of blocks [first, last), `pages` whole pages each.
struct Search {
  std::int32_t row = 0, head = 0;
  std::int32_t pages = 1;
  std::int32_t first = 0, last = 0;
};

/// The largest q.k * scale that the bounds of a block allow, for each query head: the sum over dimensions of q times
/// the largest value, or the least where q is negative. A block's bounds are those of its pages together. Reads bounds,
/// not K.
template <Place place>
struct SearchOp {
  KvTable<place> cache;
  RowTable<place> rows;
  Pointer<const float, place> q;  ///< [R, H, d] after RoPE
  int group = 1;                  ///< g
  float scale = 1;                ///< positive
  SummaryTable<place> summaries;
  Pointer<const Search, place> searches;  ///< [count]
  int count = 0;
  std::int32_t most = 0;  ///< blocks of a search, at most: launches are sized by it
  ScoreTable<place>
      out;  ///< block b of a row's KV head at [row, query head, b]; the others are not written, nor is lse
};

/// How the scores of several query heads become one value a slot.
enum class Pooling : std::uint8_t {
  mean_probability,  ///< mean of exp(score - lse): Kascade (section 3.3), TidalDecode
  max_probability,
  mean_score,  ///< before softmax; of one query, the score itself
  max_score,
  probability_of_mean,  ///< the softmax of the mean score, which is that of the mean query
};

/// How the values of several KV heads become one.
enum class Across : std::uint8_t { as_group, mean, max };

/// What counts how many units a set takes beside those that are always in it.
enum class ChoiceRule : std::uint8_t {
  count,  ///< the `wanted` best
  mass,   ///< the fewest that together with what is always in it hold `value` of the pooled values (top-p); none that
          ///< hold nothing
  threshold,  ///< all of at least `value`
};

/// One set: which scores it is made from and how. Units are `block` slots each (the last one may be short); a unit's
/// value is the largest of its slots', under ChoiceRule::mass their sum. Equal values: the lower unit wins; NaN and
/// -inf are never chosen. Scores of units have no log-sum-exps, so they are pooled as scores, and chosen by count or by
/// threshold; those of units that are always in are not read.
struct Choice {
  std::int32_t row = 0, head = 0;  ///< the first KV head whose scores are read
  std::int32_t heads = 1;          ///< so many from there, pooled by `across` over them
  std::int32_t query = -1;         ///< of the group, alone; -1: all of it, pooled
  std::int32_t set = 0;            ///< which set it writes
  Pooling pooling = Pooling::mean_probability;
  Across across = Across::as_group;  ///< as_group: by max under Pooling::max_*, else by mean
  ChoiceRule rule = ChoiceRule::count;
  std::int32_t wanted = 0;  ///< units
  double value = 0;
  std::int32_t block = 1;        ///< slots of a unit
  std::int32_t by_unit = 0;      ///< 1: the table has a score for each unit (SearchOp), not for each slot
  std::int32_t head_units = 0;   ///< units [0, head_units) are always in the set
  std::int32_t tail_units = 0;   ///< and so are units [tail_units, ...); at least head_units
  std::int32_t tail_counts = 1;  ///< ChoiceRule::mass: what the tail holds counts towards `value`
};

/// Makes sets from scores: exact. A set of all slots gets the count kEverything. A set that would be longer than the
/// table's capacity is cut there, the lowest slots kept: give a capacity that cannot be exceeded (N under mass and
/// threshold).
template <Place place>
struct SelectOp {
  KvTable<place> cache;  ///< for the number of slots that a row sees
  RowTable<place> rows;
  int group = 1;
  ScoreTable<place> scores;
  Pointer<const Choice, place> choices;  ///< [count]
  int count = 0;
  SetTable<place> sets;
  bool weighs_means = false;  ///< some choice has Pooling::probability_of_mean
};

/// True where KV heads are pooled by max.
constexpr bool takes_largest_head(const Choice& choice) {
  if (choice.across != Across::as_group) return choice.across == Across::max;
  return choice.pooling == Pooling::max_probability || choice.pooling == Pooling::max_score;
}

/// What one KV head of a row reads.
struct Read {
  enum class Kind : std::int32_t {
    nothing,     ///< the output is zeros
    everything,  ///< every slot that the row sees
    window,      ///< slots [0, sink) and the last `local` that the row sees
    sets,        ///< a set
  };
  Kind kind = Kind::everything;
  std::int32_t set = 0;              ///< sets: the first
  std::int32_t per_query = 0;        ///< 1: sets [set, set + g), one for each query head; 0: one for all
  std::int32_t sink = 0, local = 0;  ///< window
  /// Everything, and a set for all query heads (cpu: whatever is read): 1: attend leaves the scores too, as score makes
  /// them; those of a set at their places in it, and the log-sum-exp of what was read.
  std::int32_t scores = 0;
  std::int32_t settled = 0;  ///< 1: sets that no launch still writes (KvTable::fresh)
};

/// Softmax attention of every head of every row over what it reads. Freed slots and slots behind the row are skipped.
/// Sets may hold only slots that the row sees.
template <Place place>
struct AttendOp {
  KvTable<place> cache;
  RowTable<place> rows;
  Pointer<const float, place> q;  ///< [R, H, d] after RoPE
  int group = 1;
  float scale = 1;
  Pointer<const Read, place> reads;           ///< [R, kv_heads]
  SetTable<place> sets;                       ///< unused where no head reads one
  Pointer<float, place> out;                  ///< [R, H, d]
  Pointer<float, place> lse;                  ///< [R, H] of what was read (-inf: nothing), or null
  Pointer<std::uint16_t, place> narrow = {};  ///< [R, H, d] `out` as bf16 too, or null
  ScoreTable<place> scores = {};              ///< where Read::scores are left; unused where no head leaves any
};

/// Rows of a prompt that lie together in the pass. Each sits one slot behind the one before it and sees all slots up to
/// its own.
struct PromptRows {
  std::int32_t sequence = 0;  ///< into KvTable::views
  std::int32_t row = 0;       ///< the first
  std::int32_t rows = 0;
  std::int32_t behind = 1;  ///< of the first row, as RowTable::behind; at least `rows`
};

/// Softmax attention of a prompt's rows over everything that they see: what attend does for a row that reads
/// everything, but K and V are read once for a tile of rows. Freed slots are skipped.
template <Place place>
struct PrefillOp {
  KvTable<place> cache;
  PromptRows prompt;
  Pointer<const float, place> q;  ///< [R, H, d] after RoPE, of the whole pass
  int group = 1;
  float scale = 1;
  Pointer<float, place> out;  ///< [R, H, d], of the whole pass
  Pointer<float, place> lse;  ///< [R, H] of the whole pass, or null
  /// [count] where there are some: rows of several sequences, each as many as `prompt` says or fewer, in its place.
  Pointer<const PromptRows, place> pieces = {};
  int count = 0;
};

/// What rows gave to each slot (H2O, section 4; TOVA, section 3.2): the sum over a piece's rows that see the slot, and
/// over the query heads of a KV head, of exp(score - lse). Freed slots get 0. Reads K. A decoded row is a piece of one.
template <Place place>
struct ColumnSumsOp {
  KvTable<place> cache;
  Pointer<const PromptRows, place> pieces;  ///< [count]
  int count = 0;
  Pointer<const float, place> q;    ///< [R, H, d] after RoPE, of the whole pass
  Pointer<const float, place> lse;  ///< [R, H] of all that the rows see, of the whole pass
  int group = 1;
  float scale = 1;
  std::size_t stride = 0;      ///< at least the slots that the last row of a piece sees: launches are sized by it
  Pointer<float, place> sums;  ///< [count, kv_heads, stride]; what lies behind what the last row sees is not written
};

/// The operations of one device.
template <Place place>
class Operations {
 public:
  virtual ~Operations() = default;
  virtual void append(const AppendOp<place>& op) = 0;
  virtual void score(const ScoreOp<place>& op) = 0;
  virtual void summarise(const SummariseOp<place>& op) = 0;
  virtual void search(const SearchOp<place>& op) = 0;
  virtual void select(const SelectOp<place>& op) = 0;
  virtual void attend(const AttendOp<place>& op) = 0;
  virtual void prefill(const PrefillOp<place>& op) = 0;
  virtual void column_sums(const ColumnSumsOp<place>& op) = 0;
};

}  // namespace glimpse::kernels
