// The beginning of a request's prompt that is there already, in a saved session or a sequence in memory; and the
// session that is written when the prompt has grown. One thread at a time. Inside engine only.
#pragma once

#include <exception>
#include <span>

#include "glimpse/engine/requests/active_request.h"
#include "glimpse/engine/runtime.h"

namespace glimpse::engine {

/// Takes what the request's session has of its prompt. Throws UserError for a file that is refused, CacheFull.
void load_session(Runtime& runtime, ActiveRequest& request);

/// Takes what a sequence has of the request's prompt; its id is -1 then.
void go_on_from(Runtime& runtime, ActiveSequence& held, ActiveRequest& request);

/// After the prefill, or the chunks of it that were done, where the rule says so: writes the request's session. What
/// fails is noted in the request's statistics; returns it where it is a bug.
std::exception_ptr save_grown(const Runtime& runtime, ActiveRequest& request, std::span<const float> logits) noexcept;

}  // namespace glimpse::engine
