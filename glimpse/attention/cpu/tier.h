// The host tier of ArkVale and ShadowKV: of each head a bounded number of pages is resident, the others wait and are
// recalled when a set needs them. What is attended never depends on it.
// Inside attention/cpu only; see runner.h for threads.
#pragma once

#include "glimpse/attention/cpu/pass.h"

namespace glimpse::attention {

/// Between a layer's searches and its attending, by one thread, because tables change.
void recall_sets(Pass& pass, int layer);

}  // namespace glimpse::attention
