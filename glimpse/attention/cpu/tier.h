// The host tier on the CPU: pages move when a layer's sets are made, before it attends.
// Inside attention/cpu only; see runner.h for threads.
#pragma once

#include "glimpse/attention/cpu/pass.h"

namespace glimpse::attention {

/// Between a layer's searches and its attending, by one thread, because tables change.
void recall_sets(Pass& pass, int layer);

}  // namespace glimpse::attention
