#include "glimpse/engine/requests/admission.h"

#include <algorithm>

#include "glimpse/engine/requests/decode_plain.h"
#include "glimpse/engine/requests/finish.h"
#include "glimpse/engine/requests/jobs.h"
#include "glimpse/engine/requests/preempt.h"
#include "glimpse/engine/requests/prefixes.h"
#include "glimpse/engine/requests/shared_prompt.h"
#include "glimpse/engine/requests/slices.h"

namespace glimpse::engine {
namespace {

void list_ongoing(Requests& requests, Ongoing& ongoing) {
  ongoing.requests.clear();
  ongoing.jobs.clear();
  lead_on(requests);
  bool begins = true;  // the next one that is not running: those behind it wait for it
  for (auto& [id, request] : requests.all) {
    if (request.phase == Phase::done || follows(request)) continue;
    if (begins && !request.running) {
      if (take_prefix(requests, request)) continue;
      begins = false;
    }
    ongoing.requests.push_back(&request);
    ongoing.jobs.push_back(job_of(requests.runtime, request));
  }
}

/// Of a request that is away: gives back the pages that it shares, too. False where none does.
bool unshare(Requests& requests, const Ongoing& ongoing) {
  kv::Cache& cache = requests.runtime.cache();
  for (ActiveRequest* request : ongoing.requests) {
    if (!request->away || cache.pages_held(request->sequence->id) == 0) continue;
    try {
      cache.put_away(request->sequence->id, true);
    } catch (...) {
      fail_live(requests, *request, std::current_exception());
    }
    return true;
  }
  return false;
}

/// True where pages of kept prefixes would help: one has given way.
bool make_room(Runtime& runtime, const Ongoing& ongoing, const Room& room, const Schedule& next) {
  PrefixCache& prefixes = runtime.prefixes;
  if (prefixes.size() == 0) return false;
  if (!next.preempt && !next.full) {
    Room more = room;
    more.free_pages += prefixes.pages();
    if (!schedule(ongoing.jobs, more).begin) return false;
  }
  return prefixes.evict(runtime.cache());
}

}  // namespace

Schedule admit(Requests& requests, Ongoing& ongoing) {
  Runtime& runtime = requests.runtime;
  kv::Cache& cache = runtime.cache();
  const EngineOptions& options = runtime.options;
  Room room;
  room.answer_pages = all_heads(runtime);
  room.step_rows = options.step_tokens > 0 ? options.step_tokens : options.prefill_chunk;
  for (bool trimmed = false;;) {
    list_ongoing(requests, ongoing);
    room.free_pages = static_cast<std::int64_t>(cache.usage().pages_free);
    Schedule next = schedule(ongoing.jobs, room);
    const bool waits = std::any_of(ongoing.jobs.begin(), ongoing.jobs.end(),
                                   [](const Job& job) { return job.phase == Job::Phase::waiting; });
    const bool short_of_pages = next.preempt || next.full || (waits && !next.begin);
    if (!trimmed && short_of_pages) {
      for (const ActiveRequest* request : ongoing.requests) {
        if (request->sequence) cache.trim(request->sequence->id);
      }
      trimmed = true;
    } else if (short_of_pages && make_room(runtime, ongoing, room, next)) {
      continue;
    } else if ((next.preempt || next.full) && requests.open.request != nullptr) {
      run_slice(requests, kWholeRest);  // it may be its turn to give pages back
    } else if (next.preempt) {
      preempt(requests, *ongoing.requests[*next.preempt]);
      room.admits = false;
    } else if (next.begin) {
      begin(requests, *ongoing.requests[*next.begin]);
      answer_loaded(requests);
    } else if (next.full && unshare(requests, ongoing)) {
      continue;
    } else if (next.full && is_alone(cache, *ongoing.requests.front())) {
      try {
        end_answer(runtime, *ongoing.requests.front(), FinishReason::context_full);
      } catch (...) {
        fail_live(requests, *ongoing.requests.front(), std::current_exception());
      }
    } else {
      cache.set_sparing(trimmed);
      return next;
    }
  }
}

void answer_loaded(Requests& requests) {
  for (auto& [id, request] : requests.all) {
    if (request.phase != Phase::prefill || request.away || request.prefilled < request.result.stats.prompt_tokens) {
      continue;
    }
    try {
      request.phase = Phase::decode;
      ++requests.answered;
      request.result.stats.first_chunk_s = seconds_since(request.submitted);
      share_prompt(requests, request);
      const std::vector<float> logits = request.sequence->logits;  // the request's own may go with it
      if (request.request.on_prefill) request.request.on_prefill(request.prefilled, request.prefilled);
      if (request.phase == Phase::decode) {  // else cancelled
        take_logits(requests.runtime, request, logits);
      }
      answer_followers(requests, id, logits);
    } catch (...) {
      fail_live(requests, request, std::current_exception());
    }
  }
}

}  // namespace glimpse::engine
