#include "glimpse/engine/requests/preempt.h"

#include <fmt/format.h>

#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/engine/requests/finish.h"
#include "glimpse/engine/requests/prompt_start.h"

namespace glimpse::engine {

void begin(Requests& requests, ActiveRequest& request) {
  Runtime& runtime = requests.runtime;
  try {
    if (request.load_later) load_session(runtime, request);
    request.load_later = false;
    bring_back(runtime.cache(), request);
    if (!request.sequence) {
      request.sequence = open_sequence(request.request.plan, runtime.programs, runtime.cache());
      request.sequence->on_sets = request.request.on_sets;
    }
  } catch (const kv::CacheFull&) {
    throw;
  } catch (...) {
    return fail_live(requests, request, std::current_exception());
  }
  request.begun = true;
  request.running = true;
  request.served = requests.steps;
  request.result.stats.waited_s += seconds_since(request.waits_since);
}

void preempt(Requests& requests, ActiveRequest& request) {
  Runtime& runtime = requests.runtime;
  RequestStats& stats = request.result.stats;
  if (std::exchange(request.running, false)) {
    request.waits_since = std::chrono::steady_clock::now();
    ++stats.preemptions;
    ++requests.preemptions;
  }
  try {
    open_tier(runtime.device);
    runtime.cache().put_away(request.sequence->id, false);
    request.away = true;
    return;
  } catch (const UserError& error) {
    // A prompt can be computed again; what was decoded cannot, and a sequence that was handed over is gone.
    if (request.phase == Phase::decode || request.handed_over) {
      return fail(runtime, request,
                  std::make_exception_ptr(UserError(fmt::format(
                      "the KV cache is full, and this request's pages cannot wait elsewhere: {}", error.what()))));
    }
  }
  close_sequence(runtime.cache(), *request.sequence);
  request.sequence.reset();
  request.load_later = request.request.session.has_value();
  request.prefilled = 0;
  request.result.prompt_logprobs.clear();
  request.from_prefix = false;
  stats.reused_tokens = 0;
  stats.prefix_found = 0;
  stats.prefilled_tokens = 0;
}

}  // namespace glimpse::engine
