// What submit() refuses. One thread at a time. Inside engine only.
#pragma once

#include <cstdint>

#include "glimpse/engine/request.h"
#include "glimpse/engine/runtime.h"

namespace glimpse::engine {

/// Throws UserError for a request that cannot be served, and makes what its plan needs. The plan of a lossless request
/// becomes one that prefills densely. `forgotten`: tokens of the sequence that it goes on from that heads have
/// forgotten, the mean over them.
void check_request(Runtime& runtime, Request& request, std::int64_t forgotten);

}  // namespace glimpse::engine
