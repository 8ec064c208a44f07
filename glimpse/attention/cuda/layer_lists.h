// What PassTables::layer_of() puts into a layer's lists, by kind of set. Functions of their arguments; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "glimpse/attention/cuda/pass_tables.h"

namespace glimpse::attention::cuda {

/// Rows are counted from the group's first.
void add_union(const PassEntry& entry, const SelectOp& select, int row, GroupLayer& to);
void add_rank_merge(const PassEntry& entry, const SelectOp& select, int row, GroupLayer& to);
/// All searches of trees in a row from the first of the selects on; returns how many these are.
std::size_t add_tree_searches(const PassEntry& entry, std::span<const SelectOp> selects, int row, GroupLayer& to);
void add_unit_search(const PassEntry& entry, const SelectOp& select, int row, GroupLayer& to);
/// Sets of a layer whose rows are put together.
void add_made(const PassEntry& entry, int layer, int row, GroupLayer& to);

/// True where two searches of trees differ in the head alone.
bool searches_alike(const PassEntry& entry, const SelectOp& a, const SelectOp& b);
/// Slots of a set that such a search makes, at most.
std::int64_t tree_capacity(const PassEntry& entry, const SelectOp& select);
std::int64_t unit_capacity(const PassEntry& entry, const SelectOp& select);

}  // namespace glimpse::attention::cuda
