// One step of all requests: a pass, and what its logits mean for each of them. One thread at a time. Inside engine
// only.
#pragma once

#include "glimpse/engine/requests/batch.h"
#include "glimpse/engine/requests/requests.h"

namespace glimpse::engine {

/// Engine::step(). False: there was nothing to do.
bool run_step(Requests& requests, Batch& batch);

}  // namespace glimpse::engine
