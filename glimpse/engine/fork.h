// A sequence's first tokens under another plan, or the same. One thread at a time. Inside engine only.
#pragma once

#include <cstdint>

#include "glimpse/engine/active_sequence.h"
#include "glimpse/engine/programs.h"

namespace glimpse::engine {

/// A fork of the source's first `tokens` under a plan that require_plan() took. Throws UserError, and changes nothing,
/// for a number of tokens that the source has not, and where a head has forgotten what the fork could need.
ActiveSequence forked(const ActiveSequence& source, const plan::Plan& plan, std::int64_t tokens, Programs& programs,
                      kv::Cache& cache);

}  // namespace glimpse::engine
