// What a step runs: who begins, who waits, the parts of the pass, and what its logits mean for each request.
#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/engine/engine.h"
#include "glimpse/engine/state.h"

namespace glimpse::engine {
namespace {

/// Pages of one head that a step's sets can touch at most, by what the plan's selectors may hold.
std::int64_t set_pages(const plan::Plan& plan, std::int64_t tokens) {
  std::int64_t most = 0;
  for (const plan::Selector& selector : plan.selectors) {
    const std::int64_t lists = selector.per == plan::SetPer::query_head ? plan.shape.group() : 1;
    const std::int64_t unit = std::clamp(selector.block, 1, static_cast<int>(kernels::kPageTokens));
    std::int64_t held = plan::budget_tokens(selector.budget, tokens) / unit + 2;
    if (!selector.counts_local) held += plan::window_tokens(selector, tokens) / kernels::kPageTokens + 2;
    for (const plan::Term& term : selector.terms) held += 2 * term.index.outlier_chunks;
    most = std::max(most, lists * held);
  }
  return most;
}

std::size_t logits_rows(const PassPart& part) {
  if (part.logits == PassPart::Logits::none) return 0;
  return part.logits == PassPart::Logits::all ? part.tokens.size() : 1;
}

bool is_chunk(const PassPart& part) {
  return part.kind == attention::PassKind::prompt;
}

}  // namespace

std::size_t Engine::State::next_chunk(const ActiveRequest& request) const {
  return std::min(chunk_rows(request.request.plan),
                  request.request.prompt.size() - static_cast<std::size_t>(request.prefilled));
}

bool Engine::State::reads_whole(const ActiveRequest& request) const {
  if (!tier_open) return false;  // nothing waits
  if (request.phase == Phase::prefill || request.drafting) return true;
  const ActiveSequence& sequence = *request.sequence;
  const Request& wanted = request.request;
  return (wanted.audit_every > 0 && sequence.steps % wanted.audit_every == 0) ||
         (wanted.correct_every > 0 && request.uncorrected + 1 >= wanted.correct_every) ||
         plan::is_dense_at(sequence.plan(), sequence.length + 1);
}

std::int64_t Engine::State::pages_needed(const ActiveSequence& sequence, std::int64_t more, bool whole) const {
  std::int64_t pages = cache->pages_to_extend(sequence.id, more);
  if (!tier_open) return pages;
  const std::int64_t most = set_pages(sequence.plan(), sequence.length + more);
  for (int layer = 0; layer < sequence.plan().shape.layers; ++layer) {
    for (int head = 0; head < sequence.plan().shape.kv_heads; ++head) {
      const std::int64_t waiting = cache->waiting_pages(sequence.id, layer, head);
      pages += whole ? waiting : std::min(waiting, most);
    }
  }
  return pages;
}

Job Engine::State::job_of(const ActiveRequest& request) const {
  const std::int64_t left = request.result.stats.prompt_tokens - request.prefilled;
  const bool prefills = request.phase == Phase::prefill;
  Job job;
  job.holds = request.sequence.has_value() && !request.away && cache->pages_held(request.sequence->id) > 0;
  job.served = request.served;
  if (!request.running) {
    const std::int64_t heads = std::int64_t{model.config().layers} * model.config().kv_heads;
    const auto pages_of = [&](std::int64_t more) {
      return (more + kernels::kPageTokens - 1) / kernels::kPageTokens * heads;
    };
    if (!request.sequence) {
      job.ahead = pages_of(left);
    } else if (request.away) {
      job.ahead = cache->pages_away(request.sequence->id) + (prefills ? pages_of(left) : 0);
    } else {
      job.ahead = pages_needed(*request.sequence, prefills ? left : 1, prefills);
    }
    return job;
  }
  job.phase = prefills ? Job::Phase::prefill : Job::Phase::decode;
  const bool verifies = !prefills && request.drafting && request.drafting->sampler;
  job.rows = prefills   ? static_cast<int>(next_chunk(request))
             : verifies ? static_cast<int>(request.drafting->rows.size())
                        : 1;
  job.pages = pages_needed(*request.sequence, prefills ? job.rows : 1, reads_whole(request));
  if (prefills) job.ahead = pages_needed(*request.sequence, left, true);
  return job;
}

bool Engine::State::is_alone(const ActiveRequest& request) const {
  const kv::CacheUsage usage = cache->usage();
  return cache->pages_held(request.sequence->id) == static_cast<std::int64_t>(usage.pages_total - usage.pages_free);
}

bool Engine::State::unshare() {
  for (ActiveRequest* request : ongoing) {
    if (!request->away || cache->pages_held(request->sequence->id) == 0) continue;
    try {
      cache->put_away(request->sequence->id, true);
    } catch (...) {
      fail_live(*request, std::current_exception());
    }
    return true;
  }
  return false;
}

Schedule Engine::State::next_schedule() {
  Room room;
  room.answer_pages = std::int64_t{model.config().layers} * model.config().kv_heads;
  room.step_rows = options.step_tokens > 0 ? options.step_tokens : options.prefill_chunk;
  for (bool trimmed = false;;) {
    ongoing.clear();
    jobs.clear();
    for (auto& [id, request] : requests) {
      if (request.phase == Phase::done) continue;
      ongoing.push_back(&request);
      jobs.push_back(job_of(request));
    }
    room.free_pages = static_cast<std::int64_t>(cache->usage().pages_free);
    Schedule next = schedule(jobs, room);
    const bool waits =
        std::any_of(jobs.begin(), jobs.end(), [](const Job& job) { return job.phase == Job::Phase::waiting; });
    if (!trimmed && (next.preempt || next.full || (waits && !next.begin))) {
      for (const ActiveRequest* request : ongoing) {
        if (request->sequence) cache->trim(request->sequence->id);
      }
      trimmed = true;
    } else if (next.preempt) {
      preempt(*ongoing[*next.preempt]);
      room.admits = false;
    } else if (next.begin) {
      begin(*ongoing[*next.begin]);
      answer_loaded();
    } else if (next.full && unshare()) {
      continue;
    } else if (next.full && is_alone(*ongoing.front())) {
      try {
        end(*ongoing.front(), FinishReason::context_full);
      } catch (...) {
        fail_live(*ongoing.front(), std::current_exception());
      }
    } else {
      cache->set_sparing(trimmed);
      return next;
    }
  }
}

void Engine::State::make_batch() {
  parts.clear();
  owners.clear();
  const Schedule next = next_schedule();
  std::int64_t pages = 0;
  for (const auto* list : {&next.decode, &next.prefill}) {
    for (const std::size_t i : *list) pages += jobs[i].pages;
  }
  // Whole runs for some must not leave others without the pages that are counted for them.
  const std::int64_t heads = std::int64_t{model.config().layers} * model.config().kv_heads;
  const auto most = static_cast<std::int64_t>(next.decode.size() + next.prefill.size()) * heads * (kv::kRunPages - 1);
  if (pages + most > static_cast<std::int64_t>(cache->usage().pages_free)) cache->set_sparing(true);
  for (const std::size_t i : next.decode) add_decode(*ongoing[i]);
  for (const std::size_t i : next.prefill) add_chunk(*ongoing[i]);
}

void Engine::State::add_decode(ActiveRequest& request) {
  PassPart part{&*request.sequence, {&request.next, 1}};
  part.audit = request.request.audit_every > 0 && request.sequence->steps % request.request.audit_every == 0;
  parts.push_back(request.drafting ? drafting_part(request) : part);
  owners.push_back(&request);
}

void Engine::State::add_chunk(ActiveRequest& request) {
  const std::span<const Token> prompt(request.request.prompt);
  const auto first = static_cast<std::size_t>(request.prefilled);
  const std::size_t count = next_chunk(request);
  PassPart part{&*request.sequence, prompt.subspan(first, count)};
  part.kind = attention::PassKind::prompt;
  part.prompt_end = static_cast<std::int64_t>(prompt.size());
  part.logits = first + count == prompt.size() ? PassPart::Logits::last : PassPart::Logits::none;
  const bool wanted = request.request.keep || request.request.session;  // what is in, when it is cancelled
  if (!wanted || can_take_back(part)) part.stop = request.stop.get();
  parts.push_back(part);
  owners.push_back(&request);
  if (request.result.stats.first_chunk_s < 0) request.result.stats.first_chunk_s = seconds_since(request.submitted);
}

void Engine::State::take_results(std::span<const float> logits, double seconds) {
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const bool stopped = parts[i].stop != nullptr && parts[i].stop->load(std::memory_order_relaxed);
    if (failures[i] && !stopped) fail_live(*owners[i], failures[i]);
  }
  end_cancelled();
  for (std::size_t i = 0; i < owners.size(); ++i) {
    ActiveRequest& request = *owners[i];
    if (request.phase != Phase::decode) continue;
    request.result.stats.decode_s += seconds;
    request.result.stats.attention = request.sequence->stats;
    ++request.uncorrected;
  }
  const auto vocabulary = static_cast<std::size_t>(model.config().vocabulary);
  std::size_t row = 0;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const std::size_t count = logits_rows(parts[i]);
    if (is_chunk(parts[i]) && owners[i]->phase == Phase::prefill) {
      take_chunk(*owners[i], logits.subspan(row * vocabulary, count * vocabulary), seconds);
    }
    row += count;
  }
  row = 0;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    ActiveRequest& request = *owners[i];
    const std::size_t count = logits_rows(parts[i]);
    const auto own = logits.subspan(row * vocabulary, count * vocabulary);
    row += count;
    if (count == 0 || request.phase != Phase::decode) continue;
    try {
      request.drafting && !is_chunk(parts[i]) ? take_drafting(request, own, seconds) : take(request, own);
    } catch (...) {
      fail_live(request, std::current_exception());
    }
  }
}

void Engine::State::take_chunk(ActiveRequest& request, std::span<const float> logits, double seconds) {
  RequestStats& stats = request.result.stats;
  stats.prefilled_tokens += request.sequence->length - request.prefilled;
  stats.prefill_s += seconds;
  stats.attention = request.sequence->stats;
  request.prefilled = request.sequence->length;
  request.served = steps;
  if (request.prefilled == stats.prompt_tokens) {
    request.phase = Phase::decode;
    // Before the callback, which may cancel the request.
    if (request.request.session) {
      if (const std::exception_ptr found = save_grown(request, logits)) bug = found;
    }
  }
  if (!request.request.on_prefill) return;
  try {
    request.request.on_prefill(request.prefilled, stats.prompt_tokens);
  } catch (...) {
    fail_live(request, std::current_exception());
  }
}

}  // namespace glimpse::engine
