#include "glimpse/engine/requests/jobs.h"

#include <algorithm>

namespace glimpse::engine {
namespace {

/// Pages of one head that a step's sets can touch at most, by what the plan's selectors may hold.
std::int64_t set_pages(const plan::Plan& plan, std::int64_t tokens) {
  std::int64_t most = 0;
  for (const plan::Selector& selector : plan.selectors) {
    const std::int64_t lists = selector.per == plan::SetPer::query_head ? plan.shape.group() : 1;
    const std::int64_t block = std::clamp(selector.block, 1, static_cast<int>(kernels::kPageTokens));
    std::int64_t held = plan::budget_tokens(selector.budget, tokens) / block + 2;
    if (!selector.counts_local) held += plan::window_tokens(selector, tokens) / kernels::kPageTokens + 2;
    for (const plan::Term& term : selector.terms) held += 2 * term.index.outlier_chunks;
    most = std::max(most, lists * held);
  }
  return most;
}

/// True when its next rows, or the correction behind them, read every token.
bool reads_whole(const Device& device, const ActiveRequest& request) {
  if (!device.tier_open) return false;  // nothing waits
  if (request.phase == Phase::prefill || request.drafting) return true;
  const ActiveSequence& sequence = *request.sequence;
  const Request& wanted = request.request;
  return (wanted.audit_every > 0 && sequence.steps % wanted.audit_every == 0) ||
         (wanted.correct_every > 0 && request.uncorrected + 1 >= wanted.correct_every) ||
         plan::is_dense_at(sequence.plan(), sequence.length + 1);
}

/// Free pages that so many more rows of the sequence need; with `whole` it is read whole, and what waits comes back.
std::int64_t pages_needed(const Device& device, const ActiveSequence& sequence, std::int64_t more, bool whole) {
  std::int64_t pages = device.cache->pages_to_extend(sequence.id, more);
  if (!device.tier_open) return pages;
  const std::int64_t most = set_pages(sequence.plan(), sequence.length + more);
  for (int layer = 0; layer < sequence.plan().shape.layers; ++layer) {
    for (int head = 0; head < sequence.plan().shape.kv_heads; ++head) {
      const std::int64_t waiting = device.cache->waiting_pages(sequence.id, layer, head);
      pages += whole ? waiting : std::min(waiting, most);
    }
  }
  return pages;
}

/// Pages that a request which waits takes until its prompt is in.
std::int64_t pages_ahead(const Runtime& runtime, const ActiveRequest& request, std::int64_t prompt_left) {
  const bool prefills = request.phase == Phase::prefill;
  const std::int64_t pages = (prompt_left + kernels::kPageTokens - 1) / kernels::kPageTokens * all_heads(runtime);
  if (!request.sequence) return pages;
  if (request.away) return runtime.cache().pages_away(request.sequence->id) + (prefills ? pages : 0);
  return pages_needed(runtime.device, *request.sequence, prefills ? prompt_left : 1, prefills);
}

}  // namespace

std::size_t next_chunk(const Runtime& runtime, const ActiveRequest& request) {
  return std::min(chunk_rows(request.request.plan, runtime.options.prefill_chunk),
                  request.request.prompt.size() - static_cast<std::size_t>(request.prefilled));
}

bool is_alone(const kv::Cache& cache, const ActiveRequest& request) {
  const kv::CacheUsage usage = cache.usage();
  return cache.pages_held(request.sequence->id) == static_cast<std::int64_t>(usage.pages_total - usage.pages_free);
}

Job job_of(const Runtime& runtime, const ActiveRequest& request) {
  const std::int64_t left = request.result.stats.prompt_tokens - request.prefilled;
  const bool prefills = request.phase == Phase::prefill;
  Job job;
  if (request.open) {  // it has its pages, and keeps them
    job.phase = Job::Phase::prefill;
    job.open = true;
    job.rows = 0;
    const std::int64_t behind = request.result.stats.prompt_tokens - runtime.cache().length(request.sequence->id);
    if (behind > 0) job.ahead = pages_needed(runtime.device, *request.sequence, behind, true);
    return job;
  }
  job.holds = request.sequence.has_value() && !request.away && runtime.cache().pages_held(request.sequence->id) > 0;
  job.served = request.served;
  if (!request.running) {
    job.ahead = pages_ahead(runtime, request, left);
    return job;
  }
  job.phase = prefills ? Job::Phase::prefill : Job::Phase::decode;
  const bool verifies = !prefills && request.drafting && request.drafting->sampler;
  job.rows = prefills   ? static_cast<int>(next_chunk(runtime, request))
             : verifies ? static_cast<int>(request.drafting->drafted) + 1
                        : 1;
  const Device& device = runtime.device;
  job.pages = pages_needed(device, *request.sequence, prefills ? job.rows : 1, reads_whole(device, request));
  if (prefills) job.ahead = pages_needed(device, *request.sequence, left, true);
  return job;
}

}  // namespace glimpse::engine
