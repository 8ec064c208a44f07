#include "glimpse/engine/requests/batch.h"

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
  return entry;
}

}  // namespace

PassEntry chunk_entry(const Runtime& runtime, ActiveRequest& request) {
  const std::span<const Token> prompt(request.request.prompt);
  const auto first = static_cast<std::size_t>(request.prefilled);
  const std::size_t count = next_chunk(runtime, request);
  PassEntry entry{&*request.sequence, prompt.subspan(first, count)};
  entry.kind = attention::PassKind::prompt;
  entry.prompt_end = static_cast<std::int64_t>(prompt.size());
  entry.logits = first + count == prompt.size() ? PassEntry::Logits::last : PassEntry::Logits::none;
  entry.keeps_rows = request.request.prompt_logprobs.has_value();
  const bool wanted = request.request.keep || request.request.session;  // what is in, when it is cancelled
  if (!wanted || can_take_back(entry)) entry.stop = request.stop.get();
  if (request.result.stats.first_chunk_s < 0) request.result.stats.first_chunk_s = seconds_since(request.submitted);
  return entry;
}

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
  if (requests.open.request != nullptr || (runtime.options.slice_layers > 0 && decodes)) {
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
