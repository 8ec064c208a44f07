// From logits to the answer's next token, of every request that decodes. One thread at a time. Inside engine only.
#pragma once

#include <cstdint>
#include <span>

#include "glimpse/engine/requests/active_request.h"
#include "glimpse/engine/runtime.h"

namespace glimpse::engine {

/// Samples the request's next token from its logits [vocabulary], and takes it in. Throws what its callbacks throw.
void take_logits(Runtime& runtime, ActiveRequest& request, std::span<const float> logits);

/// The same from the largest logits, which decide it.
void take_leaders(Runtime& runtime, ActiveRequest& request, std::span<const exec::Leader> leaders);

/// A token of the answer.
struct Said {
  Token token = -1;
  std::int64_t length = 0;        ///< tokens that it comes behind
  std::span<const float> logits;  ///< [vocabulary] that it was taken from; none where the largest alone are known
};

/// Takes in the answer's next token, and decides whether the answer goes on. Throws what its callbacks throw.
void take_token(Runtime& runtime, ActiveRequest& request, const Said& said);

}  // namespace glimpse::engine
