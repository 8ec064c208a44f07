// ShadowKV, section 4: the prompt's keys are read from their singular vectors and turned to their positions; values,
// outlier chunks, the local window and what the landmarks do not cover come from the cache.
// Inside attention/cpu only; see runner.h for threads.
#pragma once

#include "glimpse/attention/cpu/pass.h"

namespace glimpse::attention {

/// True at the prompt's end, and again where a correction changed the prompt's keys.
bool wants_factors(const BatchEntry& entry, int layer);
void factor_keys(Pass& pass, const Item& item, int layer);

/// True where keys that a head's set names are made.
bool makes_keys(const BatchEntry& entry, plan::SlotId at, const kernels::Read& read);
/// Counts what such a head read from factors. After the pass.
void count_low_rank(Pass& pass, BatchEntry& entry, plan::SlotId at, const kernels::Read& read);

/// Attends to a split of a list by way of pages of its own: made keys there, everything else copied.
void run_low_rank(Pass& pass, const Call& call, const Split& split);

}  // namespace glimpse::attention
