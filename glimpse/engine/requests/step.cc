#include "glimpse/engine/requests/step.h"

#include "glimpse/engine/requests/decode_corrected.h"
#include "glimpse/engine/requests/decode_lossless.h"
#include "glimpse/engine/requests/decode_plain.h"
#include "glimpse/engine/requests/finish.h"
#include "glimpse/engine/requests/prompt_logprobs.h"
#include "glimpse/engine/requests/prompt_start.h"
#include "glimpse/engine/requests/shared_prompt.h"

namespace glimpse::engine {
namespace {

/// A chunk of the request's prompt is in, with the logits [vocabulary] of the prompt's last token where it ends there.
void take_chunk(Requests& requests, ActiveRequest& request, std::span<const float> logits, double seconds) {
  RequestStats& stats = request.result.stats;
  stats.prefilled_tokens += request.sequence->length - request.prefilled;
  stats.prefill_s += seconds;
  stats.attention = request.sequence->stats;
  request.prefilled = request.sequence->length;
  request.served = requests.steps;
  if (request.prefilled == stats.prompt_tokens) {
    request.phase = Phase::decode;
    // Before the callback, which may cancel the request.
    if (request.request.session) {
      if (const std::exception_ptr found = save_grown(requests.runtime, request, logits)) requests.bug = found;
    }
    share_prompt(requests, request);
  }
  if (!request.request.on_prefill) return;
  try {
    request.request.on_prefill(request.prefilled, stats.prompt_tokens);
  } catch (...) {
    fail_live(requests, request, std::current_exception());
  }
}

/// What the pass means for each request, and nothing for those that it ended.
void take_results(Requests& requests, const Batch& batch, std::span<const float> logits, double seconds) {
  Runtime& runtime = requests.runtime;
  const std::vector<PassEntry>& entries = batch.entries;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::exception_ptr& failure = runtime.passes.failures()[i];
    if (failure && !entries[i].is_stopped()) fail_live(requests, *batch.owners[i], failure);
  }
  end_cancelled(requests);
  for (ActiveRequest* request : batch.owners) {
    if (request->phase != Phase::decode) continue;
    request->result.stats.decode_s += seconds;
    request->result.stats.attention = request->sequence->stats;
    ++request->uncorrected;
  }
  const std::size_t vocabulary = runtime.loaded.vocabulary();
  const auto is_chunk = [](const PassEntry& entry) { return entry.kind == attention::PassKind::prompt; };
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (!entries[i].keeps_rows || batch.owners[i]->phase != Phase::prefill) continue;
    try {
      take_prompt_logprobs(runtime, *batch.owners[i], i);
    } catch (...) {
      fail_live(requests, *batch.owners[i], std::current_exception());
    }
  }
  std::size_t row = 0;
  const auto next_logits = [&](const PassEntry& entry) {
    const auto own = logits.subspan(row * vocabulary, entry.logits_rows() * vocabulary);
    row += entry.logits_rows();
    return own;
  };
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto own = next_logits(entries[i]);
    if (is_chunk(entries[i]) && batch.owners[i]->phase == Phase::prefill) {
      take_chunk(requests, *batch.owners[i], own, seconds);
    }
  }
  row = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    ActiveRequest& request = *batch.owners[i];
    const auto own = next_logits(entries[i]);
    try {
      if (own.empty() || request.phase != Phase::decode) {
        // nobody waits for them, or it has ended
      } else if (request.drafting && !is_chunk(entries[i])) {
        take_drafting(runtime, request, own, seconds);
      } else {
        take_logits(runtime, request, own);
      }
    } catch (...) {
      fail_live(requests, request, std::current_exception());
    }
    if (is_chunk(entries[i])) answer_followers(requests, request.id, own);
  }
}

}  // namespace

bool run_step(Requests& requests, Batch& batch) {
  const auto start = std::chrono::steady_clock::now();
  kv::Cache& cache = requests.runtime.cache();
  requests.bug = nullptr;
  end_cancelled(requests);
  answer_loaded(requests);
  make_batch(requests, batch);
  const bool runs = !batch.entries.empty();
  if (runs) {
    ++requests.steps;
    std::span<const float> logits;
    try {
      logits = requests.runtime.passes.run(batch.entries);
      cache.set_sparing(false);
    } catch (...) {
      cache.set_sparing(false);
      end_cancelled(requests);
      fail_broken(requests);
      throw;
    }
    take_results(requests, batch, logits, seconds_since(start));
    for (ActiveRequest* request : batch.owners) correct_due(requests, *request);
  }
  if (requests.bug) std::rethrow_exception(requests.bug);
  return runs;
}

}  // namespace glimpse::engine
