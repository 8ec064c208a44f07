// The rows of a prompt's next chunk, as a pass takes them. One thread at a time. Inside engine only.
#pragma once

#include "glimpse/engine/pass.h"
#include "glimpse/engine/requests/active_request.h"
#include "glimpse/engine/runtime.h"

namespace glimpse::engine {

/// The next rows of a request's prompt.
PassEntry chunk_entry(const Runtime& runtime, ActiveRequest& request);

}  // namespace glimpse::engine
