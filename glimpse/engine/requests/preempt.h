// Requests that wait for pages: how they begin, give their pages back, and get them again. One thread at a time. Inside
// engine only.
#pragma once

#include "glimpse/engine/requests/requests.h"

namespace glimpse::engine {

/// From now on it takes part in passes. Throws CacheFull; what else fails ends the request.
void begin(Requests& requests, ActiveRequest& request);

/// Its pages go to the tier, or where that fails and nothing is lost by it, its prompt is prefilled anew.
void preempt(Requests& requests, ActiveRequest& request);

}  // namespace glimpse::engine
