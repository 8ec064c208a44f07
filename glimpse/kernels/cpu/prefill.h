// The prefill kernels with a chosen table of bf16 products (null: f32 products): what the public functions call with
// this processor's table, and what tests call with the portable one. Same contracts as without `_with`.
#pragma once

#include <algorithm>
#include <span>

#include "glimpse/kernels/attention.h"
#include "glimpse/kernels/cpu/prefill_bf16.h"
#include "glimpse/kernels/cpu/prefill_space.h"

namespace glimpse::kernels {

void prefill_with(const KvFormat& format, const PrefillItem& item, std::span<std::byte> workspace,
                  const Bf16Products* products);
void prefill_lse_with(const KvFormat& format, const PrefillItem& item, std::span<std::byte> workspace,
                      const Bf16Products* products);
void prefill_column_sums_with(const KvFormat& format, const ColumnSumsItem& item, std::span<std::byte> workspace,
                              const Bf16Products* products);

/// The table that this process uses for caches of bf16 rows, or null.
const Bf16Products* prefill_products();

/// Fails on an item that breaks PrefillItem's contract.
void check_tile(const KvFormat& format, const PrefillItem& item, std::span<std::byte> workspace);

/// run(slice) for slices of a group that is larger than a tile: of one row, as prefill_tile_rows has it.
template <class Run>
void in_slices(const KvFormat& format, const PrefillItem& item, const Run& run) {
  for (int first = 0; first < item.group; first += kTileLanes) {
    const std::size_t floats = static_cast<std::size_t>(first) * static_cast<std::size_t>(format.dim);
    PrefillItem slice = item;
    slice.query += floats;
    if (item.out != nullptr) slice.out += floats;
    if (item.lse != nullptr) slice.lse += first;
    slice.group = std::min(item.group - first, kTileLanes);
    run(slice);
  }
}

}  // namespace glimpse::kernels
