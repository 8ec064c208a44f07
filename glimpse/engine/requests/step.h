// One step of all requests: who begins, a pass, and what comes of it. One thread at a time. Inside engine only.
#pragma once

#include "glimpse/engine/requests/batch.h"
#include "glimpse/engine/requests/requests.h"

namespace glimpse::engine {

/// Engine::step(). False: there was nothing to do.
bool run_step(Requests& requests, Batch& batch);

}  // namespace glimpse::engine
