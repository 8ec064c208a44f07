// A chunk of a prompt that runs in slices of layers, between the steps of requests that decode
// (EngineOptions::slice_seconds). At most one at a time. Its sequence is in the hands of the pass until that has ended:
// the request is neither preempted nor ended before. One thread at a time. Inside engine only.
#pragma once

#include <limits>

#include "glimpse/engine/requests/requests.h"

namespace glimpse::engine {

/// Begins the pass of the request's next chunk. Throws what ended it before its first layer.
void open_slices(Requests& requests, ActiveRequest& request);

inline constexpr double kWholeRest = std::numeric_limits<double>::infinity();

/// Runs the next layers of the chunk that is open: as many as are expected to end within so many seconds, at least one.
/// Where none is left, or the chunk was stopped, its results are taken. Throws what ended the pass.
void run_slice(Requests& requests, double seconds);

/// The request is to be ended: where its chunk is open, ends the pass, in its middle where the chunk may be stopped.
/// Throws what ended the pass.
void leave_slices(Requests& requests, ActiveRequest& request);

}  // namespace glimpse::engine
