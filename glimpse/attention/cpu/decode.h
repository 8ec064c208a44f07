// Attending of decode rows: the work of a layer over all heads and sequences, and what follows each of its outputs.
// Inside attention/cpu only; see runner.h for threads.
#pragma once

#include "glimpse/attention/cpu/pass.h"

namespace glimpse::attention {

/// Makes the attend phase's work of a layer, prompts' items too. One thread.
void build_attend(Pass& pass, int layer);

/// A split of an output. The thread that finished the output's last split merges them in order, feeds back, chooses: no
/// barrier. `next`: the split that the thread runs after this one, or null.
void run_split(Pass& pass, const Call& call, const Split& split, const Split* next);

}  // namespace glimpse::attention
