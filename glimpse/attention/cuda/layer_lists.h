// What a layer does for rows of a pass, list by list, and what each kind of set puts into these lists (unions.cc,
// tree_searches.cc, unit_searches.cc, chunk_searches.cc). Who has a GroupLayer owns its lists. Functions of their
// arguments; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/attention/cuda/pass_entry.h"
#include "glimpse/kernels/cuda/made_rows.h"
#include "glimpse/kernels/cuda/mean_tokens.h"
#include "glimpse/kernels/cuda/parts.h"
#include "glimpse/kernels/cuda/trees.h"
#include "glimpse/kernels/cuda/units.h"
#include "glimpse/kernels/ops.h"
#include "glimpse/kv/index/always_in.h"

namespace glimpse::attention::cuda {

/// What a layer does for a group.
struct GroupLayer {
  std::vector<kernels::RowHead> scores;          ///< rows counted from the group's first
  std::vector<kernels::Search> searches;         ///< likewise
  std::vector<kernels::Choice> choices;          ///< likewise
  std::vector<kernels::cuda::Union> unions;      ///< likewise
  std::vector<std::int32_t> union_queries;       ///< query heads whose choices they join
  std::vector<kernels::cuda::RankMerge> ranks;   ///< likewise
  std::vector<kernels::Choice> united;           ///< likewise: by what unions and merges make of the units
  std::vector<kernels::cuda::TreeSearch> trees;  ///< likewise; which trees, the caller says
  std::vector<kernels::cuda::UnitSearch> units;  ///< likewise
  std::vector<kernels::cuda::GateQuery> gates;   ///< likewise: queries that searches of units count; whose, the caller
  std::vector<kernels::cuda::MadeSet> made;      ///< likewise; whose factors, the caller says
  std::vector<kernels::cuda::MeanToken> means;   ///< likewise, added by MeanTokens
  std::vector<kernels::cuda::HeatRow> heats;     ///< likewise: heads whose probabilities flow back
  std::vector<kernels::RowHead> audits;          ///< likewise: heads whose keys are scored once more, behind all else
  std::vector<kernels::Read> reads;              ///< [rows, kv_heads]
  std::vector<kernels::Read> cached_reads;       ///< the same where nothing is put together; empty: nothing is
  /// Attention leaves the scores that sets are made from, and they are made behind it: nobody reads them before, and
  /// all heads that are scored read everything. Then `scores` is empty.
  bool late = false;
};

/// Rows are counted from the group's first.
void add_union(const PassEntry& entry, const SelectOp& select, int row, GroupLayer& to);
void add_rank_merge(const PassEntry& entry, const SelectOp& select, int row, GroupLayer& to);
/// What is in a set whatever the scores, where an index of trees, clusters or chunks has `covered` tokens. The buffer
/// of new tokens is what it does not cover; beside clusters of tokens there may be a window.
kv::AlwaysIn always_in(const PassEntry& entry, const SelectOp& select, std::int64_t covered);
/// All searches of trees in a row from the first of the selects on; returns how many these are. Not those of chunks.
std::size_t add_tree_searches(const PassEntry& entry, std::span<const SelectOp> selects, int row, GroupLayer& to);
void add_unit_search(const PassEntry& entry, const SelectOp& select, int row, GroupLayer& to);
/// Of units that are chunks: they are scored, and then searched as a tree.
void add_chunk_search(const PassEntry& entry, const SelectOp& select, int row, GroupLayer& to);
/// Sets of a layer whose rows are put together.
void add_made(const PassEntry& entry, int layer, int row, GroupLayer& to);

/// True where two searches of trees differ in the head alone.
bool searches_alike(const PassEntry& entry, const SelectOp& a, const SelectOp& b);
/// Slots of a set that such a search makes, at most.
std::int64_t tree_capacity(const PassEntry& entry, const SelectOp& select);
std::int64_t unit_capacity(const PassEntry& entry, const SelectOp& select);
std::int64_t chunk_capacity(const PassEntry& entry, const SelectOp& select);
/// Tokens that a search of a tree takes, at most, and units that a search of them scores.
std::int64_t searched_tokens(const PassEntry& entry, const SelectOp& select);
std::int64_t searched_units(const PassEntry& entry, const SelectOp& select);
std::int64_t searched_chunks(const PassEntry& entry, const SelectOp& select);
/// Scores of a query that such a search leaves, at most: bounds that seldom change.
std::int64_t unit_stride(const PassEntry& entry, const SelectOp& select);
std::int64_t chunk_stride(const PassEntry& entry, const SelectOp& select);

/// How long the lists of a union are.
struct UnionSize {
  std::int64_t wanted = 0;  ///< units of each
  int lists = 0;            ///< SelectOp::parts
};
UnionSize union_size(const SelectOp& select, std::int64_t tokens);

/// True where the rows of a head's set are put together: keys are made, or pages wait.
bool makes_rows(const PassEntry& entry, int layer, int head);
/// True where a head's keys of the prompt are made from factors: those of positions below made_end(), but for outliers.
bool makes_keys(const PassEntry& entry, int layer, int head);
std::int64_t made_end(const PassEntry& entry, int layer, int head);

}  // namespace glimpse::attention::cuda
