// Requests: what is submitted, what a step does, and how they end.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/engine/engine.h"
#include "glimpse/engine/state.h"

namespace glimpse::engine {
void require_whole_cache(const plan::Plan& plan, std::string_view what, std::string_view cure) {
  if (!plan::forgets(plan)) return;
  throw UserError(
      fmt::format("plan '{}' forgets tokens, so {}; leave {} out, or take a method that keeps the whole cache",
                  plan.policy, what, cure));
}

ActiveRequest& Engine::State::request(RequestId id) {
  const auto found = requests.find(id);
  if (found != requests.end()) return found->second;
  throw UserError(fmt::format("there is no request {}: {}", id,
                              id > 0 && id < next_request ? "it has been released" : "submit() never gave that id"));
}

RequestId Engine::submit(Request request) {
  return state_->enqueue(std::move(request), 0);
}

RequestId Engine::State::enqueue(Request request, std::int64_t forgotten) {
  if (passing) throw UserError("Engine::submit was called from on_sets; call it when the step has returned");
  require(request.plan);
  text::validate(request.sampling);
  if (request.correct_every < 0) {
    throw UserError(
        fmt::format("cache correction every {} tokens: give 1 or more, or 0 for none", request.correct_every));
  }
  if (request.correct_every > 0) require_correction(request.plan);
  if (request.audit_every < 0) {
    throw UserError(fmt::format("an audit every {} tokens: give 1 or more, or 0 for none", request.audit_every));
  }
  if (request.audit_every > 0) backend->require_records("measuring the coverage of every head");
  if (request.on_sets) backend->require_records("recording what each head reads");
  if (request.lossless && request.audit_every > 0) {
    throw UserError("a lossless answer is verified whole; leave --attn-audit out");
  }
  if (request.lossless) {
    require_whole_cache(request.plan, "a dense pass cannot verify what they draft", "--lossless");
    if (request.draft_tokens < 0 || request.draft_tokens > kMostDrafts) {
      throw UserError(fmt::format("lossless decoding with {} drafts at a time: give 1 to {}, or 0 for as many as pay",
                                  request.draft_tokens, kMostDrafts));
    }
    if (request.correct_every > 0) {
      throw UserError("lossless decoding corrects the cache at every verification; leave --correct out");
    }
    // A sparse prefill would leave other keys and values behind than dense attention.
    request.plan.prefill.sparse = false;
    request.plan.prefill.tile_rows = 0;
  }
  if (std::any_of(request.stop.begin(), request.stop.end(), [](const std::string& stop) { return stop.empty(); })) {
    throw UserError("a stop string is empty: give it some text, or leave it out");
  }
  const auto length = static_cast<std::int64_t>(request.prompt.size());
  if (length == 0) throw UserError("the prompt is empty: give at least one token of text");
  if (length >= context) {
    throw UserError(
        fmt::format("the prompt has {} tokens and the context holds {}, one of them for the answer; "
                    "shorten the prompt or raise -c (the model was made for {})",
                    length, context, model.config().context));
  }
  // A saved session may hold less than its tokens, too.
  if (!request.session || !plan::forgets(request.plan)) require_memory(length - forgotten);
  require_tokens(request.prompt);
  const RequestId id = next_request++;
  ActiveRequest& active = requests.emplace(id, ActiveRequest(std::move(request))).first->second;
  {
    const std::scoped_lock lock(stops_mutex);
    stops.emplace(id, active.stop);
  }
  active.result.stats.prompt_tokens = length;
  for (const Token token : active.request.prompt) active.sampler.accept(token);
  if (active.request.lossless) {
    active.drafting.emplace();
    active.drafting->length = DraftLength(active.request.draft_tokens);
    active.drafting->random.seed(active.request.sampling.seed);
  }
  if (active.request.session) {
    try {
      load_session(active);
    } catch (const kv::CacheFull&) {
      active.load_later = true;
    } catch (...) {
      forget(id);
      throw;
    }
  }
  return id;
}

void Engine::State::forget(RequestId id) {
  requests.erase(id);
  const std::scoped_lock lock(stops_mutex);
  stops.erase(id);
}

void Engine::State::finish(ActiveRequest& request, FinishReason reason) {
  const bool in_prefill = std::exchange(request.phase, Phase::done) == Phase::prefill;
  request.result.reason = reason;
  if (!std::exchange(request.running, false)) request.result.stats.waited_s += seconds_since(request.waits_since);
  if (!request.sequence) return;
  std::exception_ptr found;
  const bool saves = in_prefill && reason == FinishReason::cancelled && request.request.session &&
                     !request.sequence->broken && request.sequence->length > 0;
  if (saves || request.request.keep) {
    try {
      bring_back(request);
    } catch (const kv::CacheFull&) {  // nobody can have it then
    }
  }
  if (saves && !request.away) found = save_grown(request, {});
  if (request.request.keep && !request.away && !request.sequence->broken) {
    leave_drafts(request);
  } else {
    close(*request.sequence);
    request.sequence.reset();
  }
  if (found) std::rethrow_exception(found);
}

void Engine::State::end(ActiveRequest& request, FinishReason reason) {
  request.text.finish();
  hand_out(request);
  if (request.phase != Phase::done) finish(request, reason);  // else cancelled from a callback
}

void Engine::State::hand_out(ActiveRequest& request) {
  for (const AnswerText::Piece& piece : request.text.take_tokens()) {
    if (request.phase == Phase::done) return;
    if (request.request.on_token) request.request.on_token(piece.token, piece.bytes);
  }
  const std::string text = request.text.take_text();
  if (!text.empty() && request.phase != Phase::done && request.request.on_text) request.request.on_text(text);
}

void Engine::State::fail(ActiveRequest& request, const std::exception_ptr& why) {
  request.result.error = text_of(why);
  finish(request, FinishReason::failed);
}

void Engine::State::fail_live(ActiveRequest& request, const std::exception_ptr& why) {
  if (request.phase != Phase::done) fail(request, why);
  if (is_bug(why)) bug = why;
}

void Engine::State::end_cancelled() {
  for (auto& [id, request] : requests) {
    const bool asked = request.cancelled || request.stop->load(std::memory_order_relaxed);
    if (!asked || request.phase == Phase::done) continue;
    try {
      finish(request, FinishReason::cancelled);
    } catch (...) {
      bug = std::current_exception();
    }
  }
}

void Engine::State::fail_broken() {
  for (auto& [id, request] : requests) {
    if (request.phase == Phase::done || !request.sequence || !request.sequence->broken) continue;
    request.result.error = *request.sequence->broken;
    finish(request, FinishReason::failed);
  }
}

/// Samples the request's next token from its logits.
void Engine::State::take(ActiveRequest& request, std::span<const float> logits) {
  if (request.request.max_tokens == 0) return end(request, FinishReason::length);
  emit(request, request.sampler.sample(logits), request.sequence->length);
}

/// Notes the answer's next token, which comes behind `length` tokens, and decides whether it goes on.
void Engine::State::emit(ActiveRequest& request, Token token, std::int64_t length) {
  request.sampler.accept(token);
  if (tokenizer.ends_generation(token) && !request.request.ignore_end) {
    return end(request, FinishReason::end_of_text);
  }
  RequestStats& stats = request.result.stats;
  const bool stopped = request.text.add(token, tokenizer.piece(token));
  if (!stopped) {
    request.result.tokens.push_back(token);
    stats.generated_tokens = static_cast<std::int64_t>(request.result.tokens.size());
    stats.last_token_s = seconds_since(request.submitted);
    if (stats.first_token_s < 0) stats.first_token_s = stats.last_token_s;
  }
  hand_out(request);
  if (request.phase == Phase::done) return;  // cancelled from the callback
  if (stopped) return finish(request, FinishReason::stop);
  request.next = token;
  if (request.request.max_tokens > 0 && stats.generated_tokens >= request.request.max_tokens) {
    return end(request, FinishReason::length);
  }
  const bool forgets = plan::forgets(request.request.plan);
  const std::int64_t most = forgets ? context : std::min(context, cache->shape().capacity_tokens);
  if (length >= most) end(request, FinishReason::context_full);
}

/// After the logits of the pass are used: a correction is a pass of its own.
void Engine::State::correct_due() {
  for (ActiveRequest* request : owners) {
    const std::int64_t every = request->request.correct_every;
    if (every == 0 || request->phase != Phase::decode || request->uncorrected < every) continue;
    const auto start = std::chrono::steady_clock::now();
    try {
      correct(*request->sequence, request->uncorrected);
    } catch (...) {
      const std::exception_ptr why = std::current_exception();
      fail(*request, why);
      if (is_bug(why)) throw;
      continue;
    }
    request->uncorrected = 0;
    request->result.stats.correction_s += seconds_since(start);
    ++request->result.stats.corrections;
  }
}

bool Engine::step() {
  State& state = *state_;
  const Busy busy(state.busy, "Engine::step");
  const auto start = std::chrono::steady_clock::now();
  state.bug = nullptr;
  state.end_cancelled();
  state.answer_loaded();
  state.make_batch();
  const bool runs = !state.parts.empty();
  if (runs) {
    ++state.steps;
    std::span<const float> logits;
    try {
      logits = state.run();
      state.cache->set_sparing(false);
    } catch (...) {
      state.cache->set_sparing(false);
      state.end_cancelled();
      state.fail_broken();
      throw;
    }
    state.take_results(logits, seconds_since(start));
    state.correct_due();
  }
  if (state.bug) std::rethrow_exception(state.bug);
  return runs;
}

void Engine::cancel(RequestId id) {
  ActiveRequest& request = state_->request(id);
  if (request.phase == Phase::done) return;
  if (state_->passing) {  // from on_sets: the pass still reads its cache
    request.cancelled = true;
  } else {
    state_->finish(request, FinishReason::cancelled);
  }
}

void Engine::cancel_soon(RequestId id) {
  const std::scoped_lock lock(state_->stops_mutex);
  const auto found = state_->stops.find(id);
  if (found != state_->stops.end()) found->second->store(true, std::memory_order_relaxed);
}

bool Engine::finished(RequestId id) const {
  return state_->request(id).phase == Phase::done;
}
const Result& Engine::result(RequestId id) const {
  return state_->request(id).result;
}

void Engine::release(RequestId id) {
  if (state_->busy)
    throw UserError("Engine::release was called from a callback of the engine; cancel the request there");
  cancel(id);
  ActiveRequest& request = state_->request(id);
  if (request.sequence) state_->close(*request.sequence);
  state_->forget(id);
}

}  // namespace glimpse::engine
