#include "glimpse/engine/requests/finish.h"

#include <utility>

#include "glimpse/engine/failure.h"
#include "glimpse/engine/requests/prompt_start.h"

namespace glimpse::engine {

void finish(Runtime& runtime, ActiveRequest& request, FinishReason reason) {
  const bool in_prefill = std::exchange(request.phase, Phase::done) == Phase::prefill;
  request.result.reason = reason;
  if (!std::exchange(request.running, false)) request.result.stats.waited_s += seconds_since(request.waits_since);
  if (!request.sequence) return;
  std::exception_ptr found;
  const bool saves = in_prefill && reason == FinishReason::cancelled && request.request.session &&
                     !request.sequence->broken && request.sequence->length > 0;
  if (saves || request.request.keep) {
    try {
      bring_back(runtime.cache(), request);
    } catch (const kv::CacheFull&) {  // nobody can have it then
    }
  }
  if (saves && !request.away) found = save_grown(runtime, request, {});
  if (request.request.keep && !request.away && !request.sequence->broken) {
    if (request.drafting) leave_drafts(runtime.cache(), *request.sequence, *request.drafting);
  } else {
    close_sequence(runtime.cache(), *request.sequence);
    request.sequence.reset();
  }
  if (found) std::rethrow_exception(found);
}

void end_answer(Runtime& runtime, ActiveRequest& request, FinishReason reason) {
  request.text.finish();
  hand_out(request);
  if (request.phase != Phase::done) finish(runtime, request, reason);  // else cancelled from a callback
}

void hand_out(ActiveRequest& request) {
  for (const AnswerText::Piece& piece : request.text.take_tokens()) {
    if (request.phase == Phase::done) return;
    if (request.request.on_token) request.request.on_token(piece.token, piece.bytes);
  }
  const std::string text = request.text.take_text();
  if (!text.empty() && request.phase != Phase::done && request.request.on_text) request.request.on_text(text);
}

void fail(Runtime& runtime, ActiveRequest& request, const std::exception_ptr& why) {
  request.result.error = text_of(why);
  finish(runtime, request, FinishReason::failed);
}

void fail_live(Requests& requests, ActiveRequest& request, const std::exception_ptr& why) {
  if (request.phase != Phase::done) fail(requests.runtime, request, why);
  if (is_bug(why)) requests.bug = why;
}

void fail_broken(Requests& requests) {
  for (auto& [id, request] : requests.all) {
    if (request.phase == Phase::done || !request.sequence || !request.sequence->broken) continue;
    request.result.error = *request.sequence->broken;
    finish(requests.runtime, request, FinishReason::failed);
  }
}

void end_cancelled(Requests& requests) {
  for (auto& [id, request] : requests.all) {
    const bool asked = request.cancelled || request.stop->load(std::memory_order_relaxed);
    if (!asked || request.phase == Phase::done) continue;
    try {
      finish(requests.runtime, request, FinishReason::cancelled);
    } catch (...) {
      requests.bug = std::current_exception();
    }
  }
}

}  // namespace glimpse::engine
