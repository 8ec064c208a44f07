// Cache correction (TidalDecode, section 3.3): K and V of the last tokens are replaced by those of dense passes. One
// thread at a time. Inside engine only.
#pragma once

#include <cstdint>

#include "glimpse/engine/active_sequence.h"
#include "glimpse/engine/pass.h"
#include "glimpse/plan/plan.h"

namespace glimpse::engine {

/// Throws UserError for a plan whose heads forget tokens.
void require_correction(const plan::Plan& plan);

/// Corrects the last `count` tokens of the sequence, in passes of `chunk` rows. Throws what ends a pass.
void correct(PassRunner& passes, ActiveSequence& sequence, std::int64_t count, int chunk);

}  // namespace glimpse::engine
