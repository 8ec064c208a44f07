// Log-probabilities of a prompt's tokens, a few rows of a chunk at a time. One thread at a time. Inside engine only.
#pragma once

#include <cstddef>

#include "glimpse/engine/requests/active_request.h"
#include "glimpse/engine/runtime.h"

namespace glimpse::engine {

/// Rows of a pass that a runner has run as this entry: the last ones of its sequence.
struct ChunkRows {
  PassRunner& passes;
  std::size_t entry = 0;
  std::size_t count = 0;
};

/// Adds those that a chunk's rows tell, behind the pass that ran it, and before the next one. Throws UserError for
/// logits that are not finite, and when memory is short.
void take_prompt_logprobs(Runtime& runtime, ActiveRequest& request, const ChunkRows& rows);

}  // namespace glimpse::engine
