// Sets that are put together from parts, and the heat that chooses some of them (EvoSparse, sections 3.1 to 3.3),
// queued on a stream beside the operations of kernels/ops.h. A set goes three ways: each scoring query head chooses its
// best units (kernels::SelectOp), unite() says what every unit is worth, and SelectOp chooses by that.
//
// Letters in brackets: R rows, H query heads, KV heads, d head dimension. All memory is the device's, owned by the
// caller until the stream has passed the call. One thread at a time. Errors: as kernels/cuda/operations.h.
#pragma once

#include <cstdint>

#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::kernels::cuda {

/// Units that one union's lists may hold together.
inline constexpr int kMostCandidates = 16384;

/// What one set is made from. Units are `block` slots each; [0, head_units) and [tail_units, ...) are always in and
/// cost nothing.
struct Union {
  std::int32_t row = 0, head = 0;
  std::int32_t block = 1;
  std::int32_t head_units = 0, tail_units = 0;
  std::int32_t room = 0;                   ///< units that are taken from the lists, at most: those of the best scores
  std::int32_t first_list = 0, lists = 0;  ///< sets [first_list, first_list + lists), of whole units
  std::int32_t wanted = 0;                 ///< units of each list, at most
  std::int32_t first_query = 0;            ///< of UniteOp::queries: [lists] the query heads that chose them
  std::int32_t heat = -1;                  ///< row of UniteOp::heat; -1: what no list has is never chosen
  std::int32_t keeps = -1;                 ///< row of UniteOp::kept that remembers what was taken; -1: nobody asks
  std::int32_t joins = -1;                 ///< row of UniteOp::kept whose units are taken first, instead of lists
};

/// values[unit] = infinity for what is taken, the unit's heat for the others. Of two lists' units that with the larger
/// score of all scoring query heads is better, then the lower one.
struct UniteOp {
  KvTable<Place::device> cache;
  RowTable<Place::device> rows;
  int group = 1;
  Pointer<const Union, Place::device> unions;  ///< [count]
  int count = 0;
  int most = 0;  ///< lists times wanted, at most: up to kMostCandidates
  SetTable<Place::device> sets;
  ScoreTable<Place::device> scores;                    ///< [R, H, stride], of the query heads that are named
  Pointer<const std::int32_t, Place::device> queries;  ///< below H
  Pointer<const float, Place::device> heat;            ///< [.., stride]
  Pointer<std::uint8_t, Place::device> kept;           ///< [.., stride]
  Pointer<float, Place::device> values;                ///< [R, kv_heads, stride]; at `row` and `head` of a union
  std::size_t stride = 0;                              ///< at least the units of a row
};
void unite(Stream& stream, const UniteOp& op);

/// A set that query heads make rank by rank (LessIsMore): the best unit of each of them, then the second best, and so
/// on. Units [0, head_units) and [tail_units, ...) have no rank.
struct RankMerge {
  std::int32_t row = 0, head = 0;
  std::int32_t block = 1;  ///< slots of a unit
  std::int32_t head_units = 0, tail_units = 0;
  std::int32_t first_list = 0, lists = 0;  ///< sets [first_list, first_list + lists): what each query head of the row
                                           ///< chose, in their order, with the units that have no rank
  std::int32_t wanted = 0;                 ///< ranks of each list, at most
};

/// values[unit] = -(rank * lists + list), the largest over the lists: what is better comes first. Of units that no list
/// ranks: -infinity. Numbers of 2^24 and more are rounded.
struct RankMergeOp {
  KvTable<Place::device> cache;
  RowTable<Place::device> rows;
  int group = 1;
  Pointer<const RankMerge, Place::device> merges;  ///< [count]
  int count = 0;
  int lists = 0;  ///< of a merge, at most
  int most = 0;   ///< ranks of a list, at most
  SetTable<Place::device> sets;
  ScoreTable<Place::device> scores;            ///< [R, H, stride]
  Pointer<std::uint64_t, Place::device> keys;  ///< [count, lists, rank_room(most)], overwritten
  Pointer<float, Place::device> values;        ///< [R, kv_heads, stride]; at `row` and `head` of a merge
  std::size_t stride = 0;                      ///< at least the units of a row
};
/// Keys that a list of so many ranks needs.
constexpr std::size_t rank_room(int most) {
  return (static_cast<std::size_t>(most) + 1) / 2 * 2;
}
void merge_ranks(Stream& stream, const RankMergeOp& op);

/// A KV head of a row whose probabilities flow back.
struct HeatRow {
  std::int32_t row = 0, head = 0;
  std::int32_t place = 0;  ///< of the sums
  std::int32_t block = 1;  ///< slots of a unit; sets hold whole ones
};

/// Adds to the sums what attention gave to each unit that was read: the mean over the group of the sum of its slots'
/// probabilities, of the scores that attention left (Read::scores).
struct HeatOp {
  KvTable<Place::device> cache;
  RowTable<Place::device> rows;
  ScoreTable<Place::device> scores;  ///< [R, H, stride], at places in what was read
  int group = 1;
  Pointer<const Read, Place::device> reads;  ///< [R, kv_heads]; sets for all query heads
  SetTable<Place::device> sets;
  Pointer<const HeatRow, Place::device> heats;  ///< [count]
  int count = 0;
  int most = 0;                                  ///< units of a read, at most: launches are sized by it
  Pointer<double, Place::device> sums;           ///< [places, kv_heads, stride]
  Pointer<std::int32_t, Place::device> readers;  ///< [places, kv_heads, stride]
  std::size_t stride = 0;
};
void add_heat(Stream& stream, const HeatOp& op);

/// A piece of ColumnSumsOp whose sums become heat.
struct HeatPiece {
  std::int32_t piece = 0;
  std::int32_t slots = 0;  ///< that its last row sees
  std::int32_t place = 0;
  std::int32_t block = 1;
};

/// Adds columns' sums to the sums of units.
struct FoldOp {
  Pointer<const float, Place::device> columns;     ///< [pieces, kv_heads, column_stride]
  Pointer<const HeatPiece, Place::device> pieces;  ///< [count]
  int count = 0, kv_heads = 0;
  int most = 0;  ///< units of a piece, at most
  std::size_t column_stride = 0, stride = 0;
  Pointer<double, Place::device> sums;  ///< [places, kv_heads, stride]
};
void fold_heat(Stream& stream, const FoldOp& op);

/// gains[place, unit] = the sum over KV heads, divided by the readers where there are any.
struct GainsOp {
  Pointer<const double, Place::device> sums;
  Pointer<const std::int32_t, Place::device> readers;
  Pointer<double, Place::device> gains;  ///< [places, stride]
  int places = 0, kv_heads = 0;
  std::size_t stride = 0;
};
void heat_gains(Stream& stream, const GainsOp& op);

/// A row of heat that a pass reads before the host has the gains of the pass before it.
struct HeatStep {
  std::int32_t from = -1;  ///< row of the gains; -1: the heat stays
  std::int32_t units = 0;  ///< that have gains
  double decay = 0;
};

/// out[row, unit] = decay * heat[row, unit] + gains[from, unit], in double and rounded once: the host's bits.
struct StepHeatOp {
  Pointer<const float, Place::device> heat;      ///< [rows, stride]
  Pointer<const HeatStep, Place::device> steps;  ///< [rows]
  Pointer<const double, Place::device> gains;    ///< [.., gains_stride]
  Pointer<float, Place::device> out;             ///< [rows, stride]
  int rows = 0;
  std::size_t stride = 0, gains_stride = 0;
};
void step_heat(Stream& stream, const StepHeatOp& op);

/// out[r, h] = lse[r, h] - shift[r]: columns' sums by it count row r e^shift times.
struct ShiftOp {
  Pointer<const float, Place::device> lse, shift;  ///< [R, H], [R]
  Pointer<float, Place::device> out;               ///< [R, H]
  int rows = 0, heads = 0;
};
void shift_rows(Stream& stream, const ShiftOp& op);

}  // namespace glimpse::kernels::cuda
