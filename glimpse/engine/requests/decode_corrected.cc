#include "glimpse/engine/requests/decode_corrected.h"

#include "glimpse/engine/correction.h"
#include "glimpse/engine/failure.h"
#include "glimpse/engine/requests/finish.h"

namespace glimpse::engine {

void correct_due(Requests& requests, ActiveRequest& request) {
  Runtime& runtime = requests.runtime;
  const std::int64_t every = request.request.correct_every;
  if (every == 0 || request.phase != Phase::decode || request.uncorrected < every) return;
  const auto start = std::chrono::steady_clock::now();
  try {
    with_room(runtime, [&] {
      require_whole(*request.sequence);
      correct(runtime.passes, *request.sequence, request.uncorrected, runtime.options.prefill_chunk);
    });
  } catch (...) {
    const std::exception_ptr why = std::current_exception();
    fail(runtime, request, why);
    if (is_bug(why)) throw;
    return;
  }
  request.uncorrected = 0;
  request.result.stats.correction_s += seconds_since(start);
  ++request.result.stats.corrections;
}

}  // namespace glimpse::engine
