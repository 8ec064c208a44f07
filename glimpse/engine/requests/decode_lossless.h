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

#include <optional>
#include <span>

#include "glimpse/engine/pass.h"
#include "glimpse/engine/requests/active_request.h"
#include "glimpse/engine/runtime.h"

namespace glimpse::engine {

/// What rows of an entry tell: all their logits or the largest, or nothing.
struct Rows {
  std::span<const float> logits;          ///< [rows, vocabulary]
  std::span<const exec::Leader> leaders;  ///< [rows, as many as the pass asked for]
};

/// The request's rows of the next pass: a draft, the verification of all drafts, or a dense step.
PassEntry drafting_entry(Runtime& runtime, ActiveRequest& request);

/// While its row of kind `runs`, a draft or a dense one, runs in a pass: its rows of the pass behind it, which take
/// that one's token as their last, once. A verification takes the drafts out of the cache. None: they follow from that
/// token.
std::optional<PassEntry> entry_behind(const Runtime& runtime, ActiveRequest& request, attention::PassKind runs);

/// Behind a pass that failed: what was drafted and not verified is forgotten.
void leave_cycle(Runtime& runtime, ActiveRequest& request);

/// What rows of that kind make of the request; the pass took so long. Throws what its callbacks throw.
void take_drafting(Runtime& runtime, ActiveRequest& request, attention::PassKind kind, const Rows& rows,
                   double seconds);

}  // namespace glimpse::engine
