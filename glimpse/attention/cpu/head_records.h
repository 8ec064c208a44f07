// What each head read and handed on, for traces and tests.
// Inside attention/cpu only; see runner.h for threads.
#pragma once

#include "glimpse/attention/cpu/pass.h"

namespace glimpse::attention {

/// One thread, when the layer has attended.
void record_heads(Pass& pass, int layer, const float* q, const std::function<void(const HeadRecord&)>& see);

}  // namespace glimpse::attention
