#include "glimpse/engine/requests/finish.h"

#include <utility>
#include <vector>

#include "glimpse/engine/failure.h"
#include "glimpse/engine/requests/prefixes.h"
#include "glimpse/engine/requests/prompt_start.h"

namespace glimpse::engine {
namespace {

class HandingOut {
 public:
  explicit HandingOut(bool& flag) : flag_(flag) { flag_ = true; }
  ~HandingOut() { flag_ = false; }
  HandingOut(const HandingOut&) = delete;
  HandingOut& operator=(const HandingOut&) = delete;

 private:
  bool& flag_;
};

}  // namespace

void finish(Runtime& runtime, ActiveRequest& request, FinishReason reason) {
  const bool in_prefill = std::exchange(request.phase, Phase::done) == Phase::prefill;
  request.result.reason = reason;
  if (!std::exchange(request.running, false)) request.result.stats.waited_s += seconds_since(request.waits_since);
  if (!request.sequence) return;
  runtime.passes.take_back(*request.sequence);
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
    keep_rest(runtime, request);
    if (request.sequence) close_sequence(runtime.cache(), *request.sequence);
    request.sequence.reset();
  }
  if (found) std::rethrow_exception(found);
}

void hand_out(ActiveRequest& request) {
  if (request.handing_out) return;
  const HandingOut mark(request.handing_out);
  for (;;) {
    const std::vector<AnswerText::Piece> pieces = request.text.take_tokens();
    for (const AnswerText::Piece& piece : pieces) {
      if (request.request.on_token) request.request.on_token(piece.token, piece.bytes);
    }
    if (!pieces.empty()) continue;  // a callback may have cancelled: the tokens that were held back come before text
    const std::string text = request.text.take_text();
    if (text.empty()) return;
    if (request.request.on_text) request.request.on_text(text);
  }
}

void end_answer(Runtime& runtime, ActiveRequest& request, FinishReason reason) {
  request.text.finish();
  hand_out(request);
  if (request.phase != Phase::done) finish(runtime, request, reason);  // else cancelled from a callback
}

void fail(Runtime& runtime, ActiveRequest& request, const std::exception_ptr& why) {
  request.result.error = text_of(why);
  request.result.at_fault = is_requests_own(why);
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
    if (!asked || request.phase == Phase::done || request.open) continue;
    try {
      end_answer(requests.runtime, request, FinishReason::cancelled);
    } catch (...) {
      fail_live(requests, request, std::current_exception());
    }
  }
}

}  // namespace glimpse::engine
