// Attending of decode rows: the work list of a layer over all heads and sequences, and what follows each of its units.
// Inside attention/cpu only; see runner.h for threads.
#pragma once

#include "glimpse/attention/cpu/pass.h"

namespace glimpse::attention {

/// Makes the attend phase's work list of a layer, prompts' items too. One thread.
void build_attend(Pass& pass, int layer);

/// The kernel's call for an item of Item::Kind::attend.
kernels::AttendItem kernel_item(Pass& pass, const Item& item, const float* q);

/// The token that stands for those that left a window (RazorAttention): the unit's last partial result.
void run_mean_token(Pass& pass, const Call& call, const Item& item);

/// By the thread that finished the unit's last part: merges the parts in order, feeds back, chooses. No barrier.
void combine_unit(Pass& pass, const Call& call, int unit_index);

}  // namespace glimpse::attention
