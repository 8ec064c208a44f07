// Who takes part in the next pass: requests begin, and give their pages back, until it fits. One thread at a time.
// Inside engine only.
#pragma once

#include <vector>

#include "glimpse/engine/requests/requests.h"
#include "glimpse/engine/requests/scheduler.h"

namespace glimpse::engine {

/// Requests that have not ended, by arrival. Buffers of a step, kept.
struct Ongoing {
  std::vector<ActiveRequest*> requests;
  std::vector<Job> jobs;  ///< [requests]
};

/// Does what the scheduler says until it names a pass; indices of what it returns are those of `ongoing`. Throws
/// CacheFull while sequences that are no requests' leave no room.
Schedule admit(Requests& requests, Ongoing& ongoing);

/// First tokens of prompts that a session held whole, with their logits.
void answer_loaded(Requests& requests);

}  // namespace glimpse::engine
