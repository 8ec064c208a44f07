// Passes whose next one is known but for its last tokens. One thread at a time. Inside engine only.
#pragma once

#include "glimpse/engine/requests/batch.h"
#include "glimpse/engine/requests/requests.h"

namespace glimpse::engine {

/// While the batch's pass runs: makes Batch::next, where all that have a row now have a part in the next pass too and
/// nobody else has, the host needs nothing of this one for it, there is room, and the device queues passes. An answer
/// may still end by its token. False: there is no such pass.
bool make_next(const Requests& requests, Batch& batch);

/// Leaves in the batch the entries of the pass that was queued whose rows were not taken back.
void keep_ahead(const PassRunner& passes, Batch& batch);

}  // namespace glimpse::engine
