// Saved sessions: what of a file serves a prompt under a plan, and when a request writes one.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/engine/engine.h"
#include "glimpse/engine/sequence_impl.h"
#include "glimpse/engine/session/content.h"
#include "glimpse/engine/state.h"
#include "glimpse/model/fingerprint.h"

namespace glimpse::engine {
namespace {

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// What there is to go on from: a saved session, or a sequence in memory.
struct Held {
  std::span<const Token> tokens;
  const plan::Plan* plan = nullptr;
  std::int64_t prompt_tokens = 0, decode_steps = 0;
  bool whole = true;    ///< no head forgot a token
  bool logits = false;  ///< of the last token are there
};

/// What of it serves a prompt.
struct Share {
  std::int64_t tokens = 0;
  bool state = false;  ///< with all that attention keeps, not rows alone
  std::string why_less;
};

std::int64_t common_prefix(std::span<const Token> a, std::span<const Token> b) {
  return std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())), b.begin())
             .first -
         a.begin();
}

struct Wanted {
  std::span<const Token> prompt;
  const plan::Plan* plan = nullptr;
  std::int64_t chunk = 1;  ///< prompt rows of a pass under the plan
};

Share share_of(const Held& held, const Wanted& wanted) {
  const plan::Plan& plan = *wanted.plan;
  const auto length = static_cast<std::int64_t>(wanted.prompt.size());
  const std::int64_t common = common_prefix(held.tokens, wanted.prompt);
  const bool begins = common == static_cast<std::int64_t>(held.tokens.size());
  const bool same_plan = *held.plan == plan;
  const bool observes_all = plan.prefill.observe == plan::Observe::all;
  if (same_plan && begins && common == length && held.logits) return {common, true, ""};
  if (same_plan && begins && common < length && (observes_all || held.decode_steps > 0)) return {common, true, ""};
  if (observes_all) {
    return {0, false,
            fmt::format("'{}' observes the whole prompt, and what there is ends elsewhere or is another plan's",
                        plan.policy)};
  }
  if (!held.whole) {
    return {0, false, fmt::format("heads forgot tokens under '{}'", held.plan->policy)};
  }
  if (held.plan->prefill.sparse && !same_plan) {
    return {0, false, fmt::format("it is a sparse prefill by another plan ('{}')", held.plan->policy)};
  }
  if (plan.prefill.sparse && !same_plan) {
    return {0, false,
            fmt::format("'{}' prefills sparsely, and the prefill that is there ('{}') gave other keys and values",
                        plan.policy, held.plan->policy)};
  }
  Share share{std::min(common, length - 1), false, ""};
  const auto cut = [&](std::int64_t most, std::string_view why) {
    if (share.tokens <= most) return;
    share.tokens = std::max<std::int64_t>(0, most);
    share.why_less = why;
  };
  if (held.decode_steps > 0) cut(held.prompt_tokens, "what follows was decoded, not prefilled");
  if (plan.prefill.observe == plan::Observe::last_rows) {
    cut(length - plan.prefill.observe_rows, "the plan observes the last rows of the prompt");
  }
  if (share.tokens >= wanted.chunk) {
    cut(share.tokens / wanted.chunk * wanted.chunk,
        "whole prefill chunks are used, for the same bits as a prefill from the start");
  } else if (plan.prefill.sparse) {
    const std::int64_t tile = plan.prefill.tile_tokens(plan.shape.group());
    cut(share.tokens / tile * tile, "whole tiles of the sparse prefill are used");
  }
  return share;
}

}  // namespace

std::uint64_t Engine::fingerprint() const {
  return model::fingerprint(state_->model.file());
}

SessionModel Engine::State::session_model() const {
  return {model::fingerprint(model.file()), shape(), model.config().vocabulary, cache->shape().format};
}

/// A sequence of the session's first tokens; with `state` of all of them and what attention keeps.
ActiveSequence Engine::State::adopt(const SessionReader& reader, const SavedSession& session, const Adopted& wanted) {
  ActiveSequence sequence;
  sequence.program = program_of(*wanted.plan);
  sequence.attention = attention::SequenceState(sequence.plan(), gates);
  if (wanted.state) {
    read_state(reader, session, sequence.attention);
    sequence.steps = session.steps;
  }
  sequence.id = read_rows(reader, session, wanted.tokens, *cache);
  remember(sequence, std::span(session.tokens).first(static_cast<std::size_t>(wanted.tokens)));
  sequence.length = wanted.tokens;
  sequence.open_prompt = session.decode_steps == 0 && session.prompt_tokens < wanted.tokens;
  if (wanted.tokens == session.length()) sequence.logits = session.logits;
  return sequence;
}

std::int64_t Engine::State::save(const ActiveSequence& sequence, std::span<const float> logits,
                                 const std::filesystem::path& file) const {
  if (sequence.length == 0) throw UserError("nothing to save: the sequence has no tokens yet");
  SavedSession session;
  session.model = session_model();
  session.plan = sequence.plan();
  session.tokens = sequence.tokens;
  session.logits.assign(logits.begin(), logits.end());
  session.prompt_tokens = sequence.attention.prompt_tokens;
  session.decode_steps = sequence.attention.decode_steps;
  session.steps = sequence.steps;
  return static_cast<std::int64_t>(write_session(file, {&session, &sequence.attention, &*cache, sequence.id}));
}

void Engine::State::load_session(ActiveRequest& request) {
  const std::filesystem::path& file = *request.request.session;
  SessionUse& use = request.result.stats.session.emplace();
  require_session_place(file);
  if (std::error_code failed; !std::filesystem::exists(file, failed)) return;
  const auto start = std::chrono::steady_clock::now();
  const double cpu = cpu_seconds();
  const SessionReader reader(file);
  const SavedSession session = read_session(reader, session_model());
  const plan::Plan& plan = request.request.plan;
  const std::span<const Token> prompt(request.request.prompt);
  Share share = share_of({session.tokens, &session.plan, session.prompt_tokens, session.decode_steps, session.whole(),
                          !session.logits.empty()},
                         {prompt, &plan, static_cast<std::int64_t>(chunk_rows(plan))});
  use.file_tokens = session.length();
  use.common_tokens = common_prefix(session.tokens, prompt);
  use.loaded_tokens = share.tokens;
  use.why_less = std::move(share.why_less);
  if (share.tokens > 0) {
    request.sequence = adopt(reader, session, {&plan, share.tokens, share.state});
    if (!share.state) request.sequence->open_prompt = true;
    request.sequence->on_sets = request.request.on_sets;
    request.prefilled = share.tokens;
    request.result.stats.reused_tokens = share.tokens;
  }
  use.load_s = seconds_since(start);
  use.load_cpu_s = cpu_seconds() - cpu;
}

/// Takes of a sequence in memory what serves the request's prompt.
void Engine::State::go_on_from(ActiveRequest& request, ActiveSequence& held) {
  const plan::Plan& plan = request.request.plan;
  const bool whole = !forgetful_head(held).has_value();
  const Share share =
      share_of({held.tokens, &held.plan(), held.attention.prompt_tokens, held.attention.decode_steps, whole, false},
               {request.request.prompt, &plan, static_cast<std::int64_t>(chunk_rows(plan))});
  if (share.tokens == 0) return;
  if (!share.state) {
    attention::SequenceState state(plan, gates);
    truncate(held, share.tokens);
    state.boundaries = std::move(held.attention.boundaries);
    held.attention = std::move(state);
    held.program = program_of(plan);
    held.steps = 0;
    held.open_prompt = true;
  }
  held.stats = {};
  held.logits.clear();
  held.on_sets = request.request.on_sets;
  const kv::SequenceId id = std::exchange(held.id, -1);
  request.sequence = std::move(held);
  request.sequence->id = id;
  request.prefilled = share.tokens;
  request.result.stats.reused_tokens = share.tokens;
}

RequestId Engine::submit(Request request, Sequence&& start) {
  Sequence::Impl& given = start.impl();
  if (given.engine != state_.get()) {
    throw UserError("a request goes on from a sequence of its own engine, and this one is another's");
  }
  require_whole(given.sequence);
  if (request.session)
    throw UserError("a request that goes on from a sequence has no use for a session; leave one out");
  const ActiveSequence& held = given.sequence;
  const RequestId id = state_->enqueue(std::move(request), held.length - state_->live_tokens(held));
  try {
    state_->go_on_from(state_->requests.at(id), given.sequence);
  } catch (...) {
    state_->forget(id);
    throw;
  }
  if (given.sequence.id < 0) start.impl_.reset();
  return id;
}

std::optional<Sequence> Engine::take(RequestId id) {
  ActiveRequest& request = state_->request(id);
  if (request.phase != Phase::done || !request.sequence) return std::nullopt;
  auto impl = std::make_unique<Sequence::Impl>(state_);
  impl->sequence = std::move(*request.sequence);
  impl->sequence.on_sets = {};
  request.sequence.reset();
  return Sequence(std::move(impl));
}

void Engine::State::answer_loaded() {
  for (auto& [id, request] : requests) {
    if (request.phase != Phase::prefill || request.away || request.prefilled < request.result.stats.prompt_tokens) {
      continue;
    }
    try {
      request.phase = Phase::decode;
      request.result.stats.first_chunk_s = seconds_since(request.submitted);
      if (request.request.on_prefill) request.request.on_prefill(request.prefilled, request.prefilled);
      if (request.phase == Phase::decode) take(request, request.sequence->logits);  // else cancelled
    } catch (...) {
      fail_live(request, std::current_exception());
    }
  }
}

std::exception_ptr Engine::State::save_grown(ActiveRequest& request, std::span<const float> logits) noexcept {
  SessionUse& use = *request.result.stats.session;
  const std::int64_t length = request.sequence->length;
  if (use.file_tokens > 0 && (length <= use.file_tokens || 2 * use.common_tokens < use.file_tokens)) return {};
  const auto start = std::chrono::steady_clock::now();
  std::exception_ptr found;
  try {
    if (use.file_tokens > 0) {
      use.read_only = why_read_only(*request.request.session);
      if (!use.read_only.empty()) return {};
    }
    use.saved_bytes = save(*request.sequence, logits, *request.request.session);
    use.saved_tokens = length;
  } catch (...) {  // the prompt is paid for: the answer goes on
    const std::exception_ptr why = std::current_exception();
    use.save_error = text_of(why);
    if (is_bug(why)) found = why;
  }
  use.save_s = seconds_since(start);
  return found;
}

std::span<const Token> Sequence::tokens() const {
  return impl().sequence.tokens;
}

std::span<const float> Sequence::logits() const {
  return impl().sequence.logits;
}

void Sequence::save(const std::filesystem::path& file, std::span<const float> logits) const {
  const Impl& mine = impl();
  Engine::State& engine = *mine.engine;
  const Busy busy(engine.busy, "Sequence::save");
  require_whole(mine.sequence);
  const auto vocabulary = static_cast<std::size_t>(engine.model.config().vocabulary);
  if (!logits.empty() && logits.size() != vocabulary) {
    throw UserError(fmt::format("{} logits to save with a session; give those of the last token, {}, or none",
                                logits.size(), vocabulary));
  }
  engine.save(mine.sequence, logits, file);
}

Sequence Engine::load(const std::filesystem::path& file, const plan::Plan& plan) {
  if (state_->passing) throw UserError("Engine::load was called from on_sets; call it when the pass has returned");
  state_->require(plan);
  const SessionReader reader(file);
  const SavedSession session = read_session(reader, state_->session_model());
  const bool same_plan = session.plan == plan;
  if (session.length() > state_->context) {
    reader.refuse(fmt::format("has {} tokens, and the context holds {} (raise -c)", session.length(), state_->context));
  }
  if (!same_plan && !session.whole()) {
    reader.refuse(
        fmt::format("was made by the plan '{}', whose heads forgot tokens; only the same plan goes on from it",
                    session.plan.policy));
  }
  auto impl = std::make_unique<Sequence::Impl>(state_);
  impl->sequence = state_->adopt(reader, session, {&plan, session.length(), same_plan});
  if (!same_plan) impl->sequence.attention.prompt_tokens = session.prompt_tokens;
  return Sequence(std::move(impl));
}

}  // namespace glimpse::engine
