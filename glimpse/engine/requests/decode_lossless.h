// Lossless requests: drafted steps by the plan, a dense pass over what they drafted, and what is kept of it.
//
// A draft leaves nothing behind.
// K and V: drafted rows are appended, then taken back; the verification appends the same positions with dense rows, and
//   rejected ones are taken back again. So each verification is also the cache correction.
// State: a drafted step (PassKind::draft) enters no index, no heat and no count of steps. Searches
//   treat drafted tokens as new ones, which every set holds. SequenceState::drafted_heat keeps the heat of drafted
//   steps until commit_drafts adds that of the accepted rows.
// Sampler: drafts use a copy of it; the request's own sees only tokens that were kept.
//
// One thread at a time. Inside engine only.
#pragma once

#include <span>

#include "glimpse/engine/pass.h"
#include "glimpse/engine/requests/active_request.h"
#include "glimpse/engine/runtime.h"

namespace glimpse::engine {

/// The request's rows of the next pass: a draft, the verification of all drafts, or a dense step.
PassEntry drafting_entry(Runtime& runtime, ActiveRequest& request);

/// What those rows' logits [rows, vocabulary] make of the request; the pass took so long. Throws what its callbacks
/// throw.
void take_drafting(Runtime& runtime, ActiveRequest& request, std::span<const float> logits, double seconds);

}  // namespace glimpse::engine
