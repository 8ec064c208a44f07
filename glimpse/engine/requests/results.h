// What a pass that went through means for each of its requests. One thread at a time. Inside engine only.
#pragma once

#include <span>

#include "glimpse/engine/pass.h"
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

}  // namespace glimpse::engine
