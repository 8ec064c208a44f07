// What an entry of a pass read, counted when the pass has run from its tables.
// Inside attention/cpu only; see runner.h for threads.
#pragma once

#include "glimpse/attention/cpu/pass.h"

namespace glimpse::attention {

/// Of rows that decode, or a verification's, which did not fail.
void count_reads(Pass& pass, BatchEntry& entry);

}  // namespace glimpse::attention
