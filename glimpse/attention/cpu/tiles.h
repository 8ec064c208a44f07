// Tiles of a sparse prefill (Kascade, section 3.4), which choose what they and later layers read.
// Inside attention/cpu only; see runner.h for threads.
#pragma once

#include "glimpse/attention/cpu/pass.h"

namespace glimpse::attention {

/// What the rows of a tile read beside the tile itself.
TileSet& tile_set(Pass& pass, BatchEntry& entry, int layer, int head, int tile);

/// Room for the sums of a layer's selecting heads, and how many are still to come.
void open_tiles(Pass& pass, BatchEntry& entry, int layer);

/// Select phase: one item for each tile and selecting head, unless the layer's tiles choose behind their attention.
void add_tiles(Pass& pass, BatchEntry& entry, int index, int layer);
void run_tile(Pass& pass, const Call& call, const Item& item);

/// Attend phase: `work` has attended to everything and knows its log-sum-exps.
void choose_behind_tile(Pass& pass, const Call& call, const Item& item, const kernels::PrefillItem& work);

}  // namespace glimpse::attention
