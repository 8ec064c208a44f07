// Requests with one prompt: the first of them, their leader, prefills it, and the others fork its sequence when it is
// in. Until then they are nobody's business. One thread at a time. Inside engine only.
#pragma once

#include <span>
#include <vector>

#include "glimpse/engine/requests/requests.h"

namespace glimpse::engine {

/// submit_together(): all or none.
std::vector<RequestId> add_together(Requests& requests, std::vector<Request> wanted);

/// True for one that waits for its leader's prompt.
inline bool follows(const ActiveRequest& request) {
  return request.leader != 0 && request.phase == Phase::prefill;
}

/// Where a leader has ended before its prompt was in, the first of those that wait for it leads on.
void lead_on(Requests& requests);

/// The leader's prompt is in: those that wait for it have it, too. What fails ends the one that it fails for.
void share_prompt(Requests& requests, ActiveRequest& leader);

/// First tokens of those that have got it since, by the logits [vocabulary] of its last token.
void answer_followers(Requests& requests, RequestId leader, std::span<const float> logits);

}  // namespace glimpse::engine
