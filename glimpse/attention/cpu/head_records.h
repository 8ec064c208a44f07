// What each head read and handed on, for traces and tests: said when the pass has run, from its sets.
// Inside attention/cpu only; see runner.h for threads.
#pragma once

#include "glimpse/attention/cpu/pass.h"

namespace glimpse::attention {

/// Before the first layer: somebody watches, so that queries are kept; or nobody.
void open_records(Pass& pass, bool watched);
/// By one thread, when a layer has attended.
void keep_queries(Pass& pass, int layer, const float* q);
/// When all layers have: layer by layer, of decoding rows that did not fail. Who watches one sequence fails that one
/// alone.
void tell_heads(Pass& pass, const std::function<void(const HeadRecord&)>& see);

}  // namespace glimpse::attention
