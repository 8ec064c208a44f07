// What plans forget, before a step attends. Evicting methods decide by statistics that earlier steps fed.
// Inside attention/cpu only; see runner.h for threads.
#pragma once

#include "glimpse/attention/cpu/pass.h"

namespace glimpse::attention {

void forget(Pass& pass, BatchEntry& entry);

}  // namespace glimpse::attention
