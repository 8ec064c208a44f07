// Log-probabilities of a prompt's tokens, a few rows of a chunk at a time. One thread at a time. Inside engine only.
#pragma once

#include <cstddef>

#include "glimpse/engine/requests/active_request.h"
#include "glimpse/engine/runtime.h"

namespace glimpse::engine {

/// Adds those that a chunk's rows tell, behind the pass that ran it as entry `index` and before the next one. The
/// chunk's tokens follow the `prefilled` ones of the request. Throws UserError for logits that are not finite, and when
/// memory is short.
void take_prompt_logprobs(Runtime& runtime, ActiveRequest& request, std::size_t index);

}  // namespace glimpse::engine
