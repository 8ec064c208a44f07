// What a step runs: rows of every request that decodes, and chunks of prompts. One thread at a time. Inside engine
// only.
#pragma once

#include <vector>

#include "glimpse/engine/pass.h"
#include "glimpse/engine/requests/admission.h"
#include "glimpse/engine/requests/requests.h"

namespace glimpse::engine {

/// Buffers of a step, kept.
struct Batch {
  Ongoing ongoing;
  std::vector<PassEntry> entries;
  std::vector<ActiveRequest*> owners;  ///< [entries]
  std::vector<PassEntry> next;         ///< of the pass behind this one, where it is known (ahead.h)
  ActiveRequest* opens = nullptr;      ///< its next chunk begins to run in slices
};

/// Begins and preempts requests until a pass fits, and makes its entries; none: there is nothing to do. Throws
/// CacheFull while others leave no room.
void make_batch(Requests& requests, Batch& batch);

}  // namespace glimpse::engine
