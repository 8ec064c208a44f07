#include "glimpse/engine/requests/results.h"

#include <numeric>
#include <utility>

#include "glimpse/engine/requests/decode_lossless.h"
#include "glimpse/engine/requests/decode_plain.h"
#include "glimpse/engine/requests/finish.h"
#include "glimpse/engine/requests/prefixes.h"
#include "glimpse/engine/requests/prompt_logprobs.h"
#include "glimpse/engine/requests/prompt_start.h"
#include "glimpse/engine/requests/shared_prompt.h"

namespace glimpse::engine {
namespace {

/// A chunk of the request's prompt is in, whatever has been asked for meanwhile.
void count_chunk(const Requests& requests, ActiveRequest& request, double seconds) {
  RequestStats& stats = request.result.stats;
  stats.prefilled_tokens += request.sequence->length - request.prefilled;
  stats.prefill_s += seconds;
  stats.attention = request.sequence->stats;
  request.prefilled = request.sequence->length;
  request.served = requests.steps;
}

/// What a chunk that is in means, with the logits [vocabulary] of the prompt's last token where it ends there.
void take_chunk(Requests& requests, ActiveRequest& request, std::span<const float> logits) {
  const RequestStats& stats = request.result.stats;
  keep_prompt(requests, request, logits);
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

}  // namespace

void take_results(Requests& requests, const Ran& ran, double seconds) {
  Runtime& runtime = requests.runtime;
  const std::span<const PassEntry> entries = ran.entries;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::exception_ptr& failure = ran.passes.failures()[i];
    if (failure && !entries[i].is_stopped()) fail_live(requests, *ran.owners[i], failure);
  }
  const auto is_chunk = [](const PassEntry& entry) { return entry.kind == attention::PassKind::prompt; };
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (is_chunk(entries[i]) && !ran.passes.failures()[i] && ran.owners[i]->phase == Phase::prefill) {
      count_chunk(requests, *ran.owners[i], seconds);
    }
  }
  end_cancelled(requests);
  for (ActiveRequest* request : ran.owners) {
    if (request->phase != Phase::decode) continue;
    request->result.stats.decode_s += seconds;
    request->result.stats.attention = request->sequence->stats;
    ++request->uncorrected;
  }
  const std::size_t vocabulary = runtime.loaded.vocabulary();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (!entries[i].keeps_rows || ran.owners[i]->phase != Phase::prefill) continue;
    try {
      take_prompt_logprobs(runtime, *ran.owners[i], {ran.passes, i, entries[i].tokens.size()});
    } catch (...) {
      fail_live(requests, *ran.owners[i], std::current_exception());
    }
  }
  const std::span<const exec::Leader> leaders = ran.passes.leaders();
  const auto wanted = std::accumulate(entries.begin(), entries.end(), std::size_t{0},
                                      [](std::size_t sum, const PassEntry& each) { return sum + each.logits_rows(); });
  const std::size_t each = leaders.empty() ? 0 : leaders.size() / wanted;
  std::size_t row = 0;
  const auto next_own = [&](const PassEntry& entry) {
    const std::size_t first = std::exchange(row, row + entry.logits_rows());
    if (each > 0) return Rows{{}, leaders.subspan(first * each, entry.logits_rows() * each)};
    return Rows{ran.logits.subspan(first * vocabulary, entry.logits_rows() * vocabulary), {}};
  };
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Rows own = next_own(entries[i]);
    if (is_chunk(entries[i]) && ran.owners[i]->phase == Phase::prefill) {
      take_chunk(requests, *ran.owners[i], own.logits);
    }
  }
  row = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    ActiveRequest& request = *ran.owners[i];
    const Rows own = next_own(entries[i]);
    try {
      if ((own.logits.empty() && own.leaders.empty()) || request.phase != Phase::decode) {
        // nobody waits for them, or it has ended
      } else if (request.drafting && !is_chunk(entries[i])) {
        take_drafting(runtime, request, entries[i].kind, own, seconds);
      } else if (!own.leaders.empty()) {
        take_leaders(runtime, request, own.leaders);
      } else {
        take_logits(runtime, request, own.logits);
      }
    } catch (...) {
      fail_live(requests, request, std::current_exception());
    }
    if (is_chunk(entries[i])) answer_followers(requests, request.id, own.logits);
  }
}

}  // namespace glimpse::engine
