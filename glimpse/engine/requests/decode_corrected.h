// Requests whose K and V are corrected every so many decoded tokens (TidalDecode, section 3.3). One thread at a time.
// Inside engine only.
#pragma once

#include "glimpse/engine/requests/requests.h"

namespace glimpse::engine {

/// Corrects the request where it is due, in passes of its own: after the logits of its last pass are used. What fails
/// ends the request. Throws bugs.
void correct_due(Requests& requests, ActiveRequest& request);

}  // namespace glimpse::engine
