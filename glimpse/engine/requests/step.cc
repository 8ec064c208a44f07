#include "glimpse/engine/requests/step.h"

#include "glimpse/engine/requests/ahead.h"
#include "glimpse/engine/requests/decode_corrected.h"
#include "glimpse/engine/requests/decode_lossless.h"
#include "glimpse/engine/requests/finish.h"
#include "glimpse/engine/requests/results.h"
#include "glimpse/engine/requests/slices.h"

namespace glimpse::engine {
namespace {

/// Chunks that run in slices, behind the step of those that decode; where nobody does the whole rest.
void step_slices(Requests& requests, const Batch& batch) {
  if (batch.opens != nullptr && batch.opens->phase == Phase::prefill) open_slices(requests, *batch.opens);
  if (requests.open.request == nullptr) return;
  run_slice(requests, batch.entries.empty() ? kWholeRest : requests.runtime.options.slice_seconds);
}

/// Chunk by chunk pages are taken as sparingly as admission says, until the step has ended.
class Sparing {
 public:
  explicit Sparing(kv::Cache& cache) : cache_(cache) {}
  ~Sparing() { cache_.set_sparing(false); }
  Sparing(const Sparing&) = delete;
  Sparing& operator=(const Sparing&) = delete;

 private:
  kv::Cache& cache_;
};

}  // namespace

bool run_step(Requests& requests, Batch& batch) {
  const auto start = std::chrono::steady_clock::now();
  requests.bug = nullptr;
  const std::int64_t answered = requests.answered;
  if (ActiveRequest* open = requests.open.request; open != nullptr && (open->cancelled || open->stop->load())) {
    leave_slices(requests, *open);
  }
  end_cancelled(requests);
  answer_loaded(requests);
  const Sparing sparing(requests.runtime.cache());
  PassRunner& passes = requests.runtime.passes;
  const bool ahead = !passes.ahead().empty();
  if (ahead) {
    keep_ahead(passes, batch);
  } else {
    make_batch(requests, batch);
  }
  const auto look_ahead = [&] {
    if (make_next(requests, batch)) passes.launch_ahead(batch.next);
  };
  const bool runs = !batch.entries.empty() || requests.open.request != nullptr;
  if (runs) ++requests.steps;
  if (!batch.entries.empty()) {
    std::span<const float> logits;
    try {
      logits = ahead ? passes.run_ahead(look_ahead)
                     : with_room(requests.runtime, [&] { return passes.run(batch.entries, look_ahead); });
    } catch (...) {
      for (ActiveRequest* request : batch.owners) leave_cycle(requests.runtime, *request);
      end_cancelled(requests);
      fail_broken(requests);
      throw;
    }
    take_results(requests, {batch.entries, batch.owners, passes, logits}, seconds_since(start));
    passes.note_ahead();
    for (ActiveRequest* request : batch.owners) correct_due(requests, *request);
  }
  step_slices(requests, batch);
  requests.runtime.write_ahead();
  if (requests.bug) std::rethrow_exception(requests.bug);
  return runs || requests.answered != answered;
}

}  // namespace glimpse::engine
