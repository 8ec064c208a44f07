// Requests that wait for pages: how they begin, give their pages back, and get them again.
#include <fmt/format.h>

#include "glimpse/base/error.h"
#include "glimpse/engine/engine.h"
#include "glimpse/engine/state.h"

namespace glimpse::engine {

void Engine::State::begin(ActiveRequest& request) {
  try {
    if (request.load_later) load_session(request);
    request.load_later = false;
    bring_back(request);
    if (!request.sequence) {
      request.sequence = open(request.request.plan);
      request.sequence->on_sets = request.request.on_sets;
    }
  } catch (const kv::CacheFull&) {
    throw;
  } catch (...) {
    return fail_live(request, std::current_exception());
  }
  request.begun = true;
  request.running = true;
  request.served = steps;
  request.result.stats.waited_s += seconds_since(request.waits_since);
}

void Engine::State::bring_back(ActiveRequest& request) {
  if (!request.away) return;
  cache->bring_back(request.sequence->id);
  request.away = false;
}

void Engine::State::preempt(ActiveRequest& request) {
  RequestStats& stats = request.result.stats;
  if (std::exchange(request.running, false)) {
    request.waits_since = std::chrono::steady_clock::now();
    ++stats.preemptions;
    ++preemptions;
  }
  try {
    open_tier();
    cache->put_away(request.sequence->id, false);
    request.away = true;
    return;
  } catch (const UserError& error) {
    // A prompt can be computed again; what was decoded cannot, and a sequence that was handed over is gone.
    if (request.phase == Phase::decode || (stats.reused_tokens > 0 && !request.request.session)) {
      return fail(request,
                  std::make_exception_ptr(UserError(fmt::format(
                      "the KV cache is full, and this request's pages cannot wait in a file: {}", error.what()))));
    }
  }
  close(*request.sequence);
  request.sequence.reset();
  request.load_later = request.request.session.has_value();
  request.prefilled = 0;
  stats.reused_tokens = 0;
  stats.prefilled_tokens = 0;
}

}  // namespace glimpse::engine
