// From logits to the answer's next token, of every request that decodes. One thread at a time. Inside engine only.
#pragma once

#include <cstdint>
#include <span>

#include "glimpse/engine/requests/active_request.h"
#include "glimpse/engine/runtime.h"

namespace glimpse::engine {

/// Samples the request's next token from its logits [vocabulary], and takes it in. Throws what its callbacks throw.
void take_logits(Runtime& runtime, ActiveRequest& request, std::span<const float> logits);

/// Takes in the answer's next token, which comes behind `length` tokens, and decides whether the answer goes on. Throws
/// what its callbacks throw.
void take_token(Runtime& runtime, ActiveRequest& request, Token token, std::int64_t length);

}  // namespace glimpse::engine
