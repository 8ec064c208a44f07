// Passes whose next one is known but for its tokens. One thread at a time. Inside engine only.
#pragma once

#include "glimpse/engine/requests/batch.h"
#include "glimpse/engine/requests/requests.h"

namespace glimpse::engine {

/// While the batch's pass runs: all that decode now decode in the next pass too, nobody else has a part in it, the host
/// needs nothing of this one for it, there is room, and the device queues passes. An answer may still end by its token.
bool knows_next(const Requests& requests, const Batch& batch);

/// Leaves in the batch the entries of the pass that was queued whose rows were not taken back.
void keep_ahead(const PassRunner& passes, Batch& batch);

}  // namespace glimpse::engine
