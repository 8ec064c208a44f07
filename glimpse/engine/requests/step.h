// One step of all requests: a pass, and what its logits mean for each of them. One thread at a time. Inside engine
// only.
#pragma once

#include "glimpse/engine/requests/batch.h"
#include "glimpse/engine/requests/requests.h"

namespace glimpse::engine {

/// A pass that went through, its logits, and who asked for it.
struct Ran {
  std::span<const PassEntry> entries;
  std::span<ActiveRequest* const> owners;  ///< [entries]
  PassRunner& passes;
  std::span<const float> logits;
};

/// What a pass that took so many seconds means for each of its requests, and nothing for those that it ended.
void take_results(Requests& requests, const Ran& ran, double seconds);

/// Engine::step(). False: there was nothing to do.
bool run_step(Requests& requests, Batch& batch);

}  // namespace glimpse::engine
