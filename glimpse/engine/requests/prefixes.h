// What requests take from kept prefixes and from each other, and what they leave behind. One thread at a time. Inside
// engine only; docs/design-notes/prefix-cache.md has the rule.
#pragma once

#include <span>

#include "glimpse/engine/requests/requests.h"

namespace glimpse::engine {

/// True where a later request for the same prompt, under the same plan, finds the prompt of this one, whatever ran
/// beside it.
bool keeps_prompt(const Runtime& runtime, const Request& request);

/// Of a request that waits to begin: it has a fork of what serves most of its prompt. True: it had better wait, for
/// another one is prefilling what serves more of it.
bool take_prefix(Requests& requests, ActiveRequest& request);

/// A chunk of the request's prompt is in: keeps the end of the prompt, with the logits [vocabulary] of its last token,
/// and what a plan that forgets has whole for the last time.
void keep_prompt(Requests& requests, const ActiveRequest& request, std::span<const float> logits);

/// The request has ended: its sequence is kept, and is no longer its own, where it is of use; else it stays.
void keep_rest(Runtime& runtime, ActiveRequest& request);

}  // namespace glimpse::engine
