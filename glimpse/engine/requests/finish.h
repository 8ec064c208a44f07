// How requests end. One thread at a time. Inside engine only.
#pragma once

#include <exception>

#include "glimpse/engine/requests/active_request.h"
#include "glimpse/engine/requests/requests.h"
#include "glimpse/engine/runtime.h"

namespace glimpse::engine {

/// Ends it; what it held goes back to the cache unless it is kept. Throws nothing but a bug, and that afterwards.
void finish(Runtime& runtime, ActiveRequest& request, FinishReason reason);
/// Hands out what is ready of the answer. From a callback that does so already: nothing, the rest comes behind it.
/// Throws what the callbacks throw.
void hand_out(ActiveRequest& request);
/// Ends an answer that came to no stop string: what was held back of it is handed out first. Throws what the callbacks
/// throw.
void end_answer(Runtime& runtime, ActiveRequest& request, FinishReason reason);

/// Ends it by what it threw.
void fail(Runtime& runtime, ActiveRequest& request, const std::exception_ptr& why);
/// The same unless it has ended; keeps a bug for the end of the step.
void fail_live(Requests& requests, ActiveRequest& request, const std::exception_ptr& why);
/// Ends requests whose sequences broke.
void fail_broken(Requests& requests);
/// Ends those that were cancelled from another thread, or while a pass ran.
void end_cancelled(Requests& requests);

}  // namespace glimpse::engine
