#include "glimpse/engine/requests/batch.h"

#include "glimpse/engine/requests/chunk_entry.h"
#include "glimpse/engine/requests/decode_lossless.h"
#include "glimpse/engine/requests/jobs.h"

namespace glimpse::engine {
namespace {

PassEntry decoding_entry(Runtime& runtime, ActiveRequest& request) {
  if (request.drafting) return drafting_entry(runtime, request);
  PassEntry entry{&*request.sequence, {&request.next, 1}};
  const std::int64_t every = request.request.audit_every;
  entry.audit = every > 0 && request.sequence->steps % every == 0;
  const int deciding = request.request.logprobs ? 0 : request.sampler.deciding();
  entry.leaders = deciding <= exec::kMostLeaders ? deciding : 0;
  if (entry.leaders > 1 && runtime.device.executor->flies()) entry.draw = request.sampler.next_draw(0);
  return entry;
}

}  // namespace

void make_batch(Requests& requests, Batch& batch) {
  Runtime& runtime = requests.runtime;
  batch.entries.clear();
  batch.owners.clear();
  batch.opens = nullptr;
  Schedule next = admit(requests, batch.ongoing);
  std::int64_t pages = 0;
  for (const auto* list : {&next.decode, &next.prefill}) {
    for (const std::size_t i : *list) pages += batch.ongoing.jobs[i].pages;
  }
  // Whole runs for some must not leave others without the pages that are counted for them.
  const auto parties = static_cast<std::int64_t>(next.decode.size() + next.prefill.size());
  const std::int64_t most = parties * all_heads(runtime) * (kv::kRunPages - 1);
  kv::Cache& cache = runtime.cache();
  if (pages + most > static_cast<std::int64_t>(cache.usage().pages_free)) cache.set_sparing(true);
  const bool decodes = !next.decode.empty();
  if (requests.open.request != nullptr || (runtime.options.slice_seconds > 0 && decodes)) {
    if (requests.open.request == nullptr && !next.prefill.empty()) {
      batch.opens = batch.ongoing.requests[next.prefill.front()];
    }
    next.prefill.clear();
  }
  const auto add = [&](ActiveRequest& request, const PassEntry& entry) {
    batch.entries.push_back(entry);
    batch.owners.push_back(&request);
  };
  for (const std::size_t i : next.decode) {
    ActiveRequest& request = *batch.ongoing.requests[i];
    add(request, decoding_entry(runtime, request));
  }
  for (const std::size_t i : next.prefill) {
    ActiveRequest& request = *batch.ongoing.requests[i];
    add(request, chunk_entry(runtime, request));
  }
}

}  // namespace glimpse::engine
