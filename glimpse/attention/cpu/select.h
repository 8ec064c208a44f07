// What makes sets of decode rows: scores of all keys, searches of indices, and the choice.
// Inside attention/cpu only; see runner.h for threads.
#pragma once

#include "glimpse/attention/cpu/pass.h"

namespace glimpse::attention {

/// Makes the select phase's work of a layer, prompts' tiles too. One thread.
void build_select(Pass& pass, int layer);

/// Scores a split of the keys; the thread that finishes the head's last split chooses. `next`: the split that the
/// thread runs after this one, or null.
void run_score(Pass& pass, const Call& call, const Split& split, const Split* next);
void run_search(Pass& pass, const Call& call, const Item& item);

/// The prompt's last chunk builds what searches will read; a correction mends it.
void grow_index(Pass& pass, const Item& item, int layer);

/// Chooses and publishes from scores that are there: for one head, or when it is the last of its layer for all.
void select_head(Pass& pass, const Call& call, int batch_index, int head);
void select_layer(Pass& pass, const Call& call, int batch_index);

}  // namespace glimpse::attention
