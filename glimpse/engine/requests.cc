// Requests: continuous batching with chunked prefill.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/engine/engine.h"
#include "glimpse/engine/state.h"

namespace glimpse::engine {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

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
    } catch (...) {
      requests.erase(id);
      throw;
    }
  }
  return id;
}

void Engine::State::finish(ActiveRequest& request, FinishReason reason) {
  const bool in_prefill = std::exchange(request.phase, Phase::done) == Phase::prefill;
  request.result.reason = reason;
  if (!request.sequence) return;
  std::exception_ptr bug;
  if (in_prefill && reason == FinishReason::cancelled && request.request.session && !request.sequence->broken &&
      request.sequence->length > 0) {
    bug = save_grown(request, {});
  }
  if (request.request.keep && !request.sequence->broken) {
    leave_drafts(request);
  } else {
    close(*request.sequence);
    request.sequence.reset();
  }
  if (bug) std::rethrow_exception(bug);
}

void Engine::State::fail(ActiveRequest& request, const std::exception_ptr& why) {
  request.result.error = text_of(why);
  finish(request, FinishReason::failed);
}

std::exception_ptr Engine::State::end_cancelled() {
  std::exception_ptr bug;
  for (auto& [id, request] : requests) {
    if (!request.cancelled || request.phase == Phase::done) continue;
    try {
      finish(request, FinishReason::cancelled);
    } catch (...) {
      bug = std::current_exception();
    }
  }
  return bug;
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
  if (request.request.max_tokens == 0) return finish(request, FinishReason::length);
  emit(request, request.sampler.sample(logits), request.sequence->length);
}

/// Notes the answer's next token, which comes behind `length` tokens, and decides whether it goes on.
void Engine::State::emit(ActiveRequest& request, Token token, std::int64_t length) {
  request.sampler.accept(token);
  if (tokenizer.ends_generation(token) && !request.request.ignore_end) {
    return finish(request, FinishReason::end_of_text);
  }
  request.result.tokens.push_back(token);
  const auto generated = static_cast<std::int64_t>(request.result.tokens.size());
  request.result.stats.generated_tokens = generated;
  if (request.request.on_token) request.request.on_token(token, tokenizer.piece(token));
  if (request.phase == Phase::done) return;  // cancelled from the callback
  request.next = token;
  if (request.request.max_tokens > 0 && generated >= request.request.max_tokens) {
    return finish(request, FinishReason::length);
  }
  const bool forgets = plan::forgets(request.request.plan);
  const std::int64_t most = forgets ? context : std::min(context, cache->shape().capacity_tokens);
  if (length >= most) finish(request, FinishReason::context_full);
}

/// After the logits of the pass are used: a correction is a pass of its own.
void Engine::State::correct_due(std::span<ActiveRequest* const> decoded) {
  for (ActiveRequest* request : decoded) {
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
  std::exception_ptr bug = state.answer_loaded();
  state.parts.clear();
  auto& owners = state.owners;
  owners.clear();
  auto& taking = state.taking;
  taking.clear();
  ActiveRequest* prefilling = nullptr;
  for (auto& [id, request] : state.requests) {
    if (request.phase == Phase::decode) {
      PassPart part{&*request.sequence, {&request.next, 1}};
      part.audit = request.request.audit_every > 0 && request.sequence->steps % request.request.audit_every == 0;
      state.parts.push_back(request.drafting ? state.drafting_part(request) : part);
      taking.push_back(&request);
      owners.push_back(&request);
    } else if (request.phase == Phase::prefill && prefilling == nullptr) {
      prefilling = &request;
    }
  }
  bool prompt_ends = false;
  if (prefilling != nullptr) {
    if (!prefilling->sequence) {
      prefilling->sequence = state.open(prefilling->request.plan);
      prefilling->sequence->on_sets = prefilling->request.on_sets;
    }
    const std::span<const Token> prompt(prefilling->request.prompt);
    const auto first = static_cast<std::size_t>(prefilling->prefilled);
    const std::size_t count = std::min(state.chunk_rows(prefilling->request.plan), prompt.size() - first);
    prompt_ends = first + count == prompt.size();
    PassPart part{&*prefilling->sequence, prompt.subspan(first, count)};
    part.kind = attention::PassKind::prompt;
    part.prompt_end = static_cast<std::int64_t>(prompt.size());
    part.logits = prompt_ends ? PassPart::Logits::last : PassPart::Logits::none;
    state.parts.push_back(part);
    owners.push_back(prefilling);
    if (prompt_ends) taking.push_back(prefilling);
  }
  if (state.parts.empty()) {
    if (bug) std::rethrow_exception(bug);
    return false;
  }

  std::span<const float> logits;
  try {
    logits = state.run();
  } catch (...) {
    state.end_cancelled();
    state.fail_broken();
    throw;
  }
  // What fails for one request ends that one; a bug of ours is also thrown, when the others have their tokens.
  const auto fail = [&](ActiveRequest& request, const std::exception_ptr& why) {
    if (request.phase != Phase::done) state.fail(request, why);
    if (is_bug(why)) bug = why;
  };
  for (std::size_t i = 0; i < owners.size(); ++i) {
    if (state.failures[i]) fail(*owners[i], state.failures[i]);
  }
  if (const std::exception_ptr why = state.end_cancelled()) bug = why;
  const double seconds = seconds_since(start);
  const auto vocabulary = static_cast<std::size_t>(state.model.config().vocabulary);
  for (std::size_t i = 0; i < taking.size(); ++i) {
    if (taking[i] == prefilling || taking[i]->phase == Phase::done) continue;
    taking[i]->result.stats.decode_s += seconds;
    taking[i]->result.stats.attention = taking[i]->sequence->stats;
    ++taking[i]->uncorrected;
  }
  if (prefilling != nullptr && prefilling->phase == Phase::prefill) {
    prefilling->result.stats.prefilled_tokens += prefilling->sequence->length - prefilling->prefilled;
    prefilling->prefilled = prefilling->sequence->length;
    prefilling->result.stats.prefill_s += seconds;
    prefilling->result.stats.attention = prefilling->sequence->stats;
    if (prompt_ends) prefilling->phase = Phase::decode;
    // Before the callback, which may cancel the request.
    if (prompt_ends && prefilling->request.session) {
      if (const std::exception_ptr why = state.save_grown(*prefilling, logits.last(vocabulary))) bug = why;
    }
    if (prefilling->request.on_prefill) {
      try {
        prefilling->request.on_prefill(prefilling->prefilled, prefilling->result.stats.prompt_tokens);
      } catch (...) {
        fail(*prefilling, std::current_exception());
      }
    }
  }
  std::size_t row = 0;
  for (ActiveRequest* request : taking) {
    const bool drafts = request->drafting && request != prefilling;
    const bool verifies = drafts && request->drafting->turn == Drafting::Turn::verify;
    const std::size_t rows = verifies ? request->drafting->rows.size() : 1;
    const auto own = logits.subspan(row * vocabulary, rows * vocabulary);
    row += rows;
    if (request->phase != Phase::decode) continue;
    try {
      drafts ? state.take_drafting(*request, own, seconds) : state.take(*request, own);
    } catch (...) {
      fail(*request, std::current_exception());
    }
  }
  state.correct_due(taking);
  if (bug) std::rethrow_exception(bug);
  return true;
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
  state_->requests.erase(id);
}

}  // namespace glimpse::engine
