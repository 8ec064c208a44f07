#include "glimpse/engine/requests/slices.h"

#include <limits>
#include <utility>

#include "glimpse/engine/requests/chunk_entry.h"
#include "glimpse/engine/requests/finish.h"
#include "glimpse/engine/requests/results.h"

namespace glimpse::engine {
namespace {

void end_pass(Requests& requests) {
  OpenChunk chunk = std::exchange(requests.open, {});
  chunk.request->open = false;
  const auto start = std::chrono::steady_clock::now();
  const std::span<const float> logits = requests.runtime.sliced.close();
  ActiveRequest* const owner = chunk.request;
  take_results(requests, {{&chunk.entry, 1}, {&owner, 1}, requests.runtime.sliced, logits},
               chunk.seconds + seconds_since(start));
}

}  // namespace

void open_slices(Requests& requests, ActiveRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  const PassEntry entry = chunk_entry(requests.runtime, request);
  try {
    requests.runtime.sliced.open(entry);
  } catch (...) {
    fail_broken(requests);
    throw;
  }
  request.open = true;
  requests.open = {&request, entry, seconds_since(start)};
}

void run_slice(Requests& requests, double seconds) {
  const auto start = std::chrono::steady_clock::now();
  try {
    OpenChunk& chunk = requests.open;
    PassRunner& passes = requests.runtime.sliced;
    bool ended = chunk.entry.is_stopped();
    if (seconds == kWholeRest) {
      ended = ended || passes.advance(std::numeric_limits<int>::max());
    } else {
      double before = 0, now = 0;
      do {  // the next layer takes about as long as the last one
        before = now;
        ended = ended || passes.advance(1);
        now = seconds_since(start);
      } while (!ended && 2 * now - before <= seconds);
    }
    chunk.seconds += seconds_since(start);
    if (ended) end_pass(requests);
  } catch (...) {
    if (OpenChunk chunk = std::exchange(requests.open, {}); chunk.request != nullptr) chunk.request->open = false;
    end_cancelled(requests);
    fail_broken(requests);
    throw;
  }
}

void leave_slices(Requests& requests, ActiveRequest& request) {
  if (!request.open) return;
  request.stop->store(true, std::memory_order_relaxed);
  run_slice(requests, kWholeRest);
}

}  // namespace glimpse::engine
