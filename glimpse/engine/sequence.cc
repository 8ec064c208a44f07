#include <fmt/format.h>

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/engine/engine.h"
#include "glimpse/engine/sequence_impl.h"
#include "glimpse/kv/inspect.h"

namespace glimpse::engine {

namespace {

template <class State>
void require_head(const State& engine, int layer, int head) {
  const plan::ModelShape shape = engine.shape();
  if (layer >= 0 && layer < shape.layers && head >= 0 && head < shape.kv_heads) return;
  throw UserError(fmt::format("no layer {}, KV head {}: the model has layers 0 to {} and KV heads 0 to {}", layer, head,
                              shape.layers - 1, shape.kv_heads - 1));
}

/// A head that forgot tokens is read whole, or streamed by the very window that it kept; anything else could want a
/// token that is gone.
bool reads_what_is_left(const plan::Plan& from, const plan::Plan& to, int layer, int head) {
  const plan::Role& before = from.role(layer, head);
  const plan::Role& after = to.role(layer, head);
  if (after.kind == plan::RoleKind::dense) return true;
  if (after.kind != plan::RoleKind::stream || before.kind != plan::RoleKind::stream) return false;
  if (before.retention < 0 || after.retention < 0) return false;
  const auto at = [](const auto& list, int index) -> const auto& {
    return list[static_cast<std::size_t>(index)];
  };
  const plan::Retention& kept = at(to.retentions, after.retention);
  return kept == at(from.retentions, before.retention) && !kept.compensates &&
         at(from.selectors, before.selector) == at(to.selectors, after.selector);
}

}  // namespace

Sequence::Sequence(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Sequence::Sequence(Sequence&&) noexcept = default;
Sequence& Sequence::operator=(Sequence&&) noexcept = default;
Sequence::~Sequence() = default;

Sequence::Impl& Sequence::impl() const {
  if (!impl_) {
    throw UserError("this sequence holds nothing: it was moved from, or a request took it; open a new one");
  }
  if (impl_->alive.expired()) {
    throw UserError("the engine of this sequence is gone, and its cache with it; open a new one in another engine");
  }
  return *impl_;
}

std::int64_t Sequence::length() const {
  return impl().sequence.length;
}
const AttentionStats& Sequence::stats() const {
  return impl().sequence.stats;
}
void Sequence::reset_stats() {
  impl().sequence.stats = {};
}
void Sequence::on_sets(std::function<void(const SetTrace&)> callback) {
  if (callback) impl().engine->backend->require_records("recording what each head reads");
  impl().sequence.on_sets = std::move(callback);
}

std::span<const float> Sequence::prefill(std::span<const Token> tokens,
                                         const std::function<void(std::int64_t, std::span<const float>)>& on_logits,
                                         std::int64_t first_wanted, const std::function<bool()>& go_on) {
  Engine::State& engine = *impl().engine;
  const Busy busy(engine.busy, "Sequence::prefill");
  require_whole(impl().sequence);
  if (tokens.empty()) throw UserError("nothing to prefill: give at least one token");
  engine.require_tokens(tokens);
  const std::int64_t end = impl().sequence.length + static_cast<std::int64_t>(tokens.size());
  engine.require_memory(engine.live_tokens(impl().sequence) + static_cast<std::int64_t>(tokens.size()));
  std::span<const float> logits;
  const std::size_t chunk = engine.chunk_rows(impl().sequence.plan());
  const auto vocabulary = static_cast<std::size_t>(engine.model.config().vocabulary);
  for (std::size_t first = 0; first < tokens.size(); first += chunk) {
    if (go_on && !go_on()) return {};
    const std::size_t count = std::min(chunk, tokens.size() - first);
    const bool last = first + count == tokens.size();
    const std::int64_t position = impl().sequence.length;
    const bool all = on_logits && position + static_cast<std::int64_t>(count) > first_wanted;
    const auto wanted = all ? PassPart::Logits::all : last ? PassPart::Logits::last : PassPart::Logits::none;
    PassPart part{&impl().sequence, tokens.subspan(first, count)};
    part.kind = attention::PassKind::prompt;
    part.prompt_end = end;
    part.logits = wanted;
    engine.parts.assign(1, part);
    logits = engine.run_alone();
    if (!all) continue;
    for (std::size_t row = 0; row < count; ++row) {
      if (position + static_cast<std::int64_t>(row) < first_wanted) continue;
      on_logits(position + static_cast<std::int64_t>(row), logits.subspan(row * vocabulary, vocabulary));
    }
  }
  return logits.last(vocabulary);
}

std::span<const float> Sequence::decode(Token token, bool audit) {
  Engine::State& engine = *impl().engine;
  const Busy busy(engine.busy, "Sequence::decode");
  require_whole(impl().sequence);
  engine.require_tokens({&token, 1});
  Engine::State::close_prompt(impl().sequence);
  PassPart part{&impl().sequence, {&token, 1}};
  part.audit = audit;
  engine.parts.assign(1, part);
  return engine.run_alone();
}

void Sequence::correct(std::int64_t tokens) {
  const Busy busy(impl().engine->busy, "Sequence::correct");
  require_whole(impl().sequence);
  require_correction(impl().sequence.plan());
  if (const auto gone = impl().engine->forgetful_head(impl().sequence)) {  // of the plan that this one was forked from
    throw UserError(
        fmt::format("layer {}, KV head {} has forgotten tokens, so nothing can be corrected; prefill a new "
                    "sequence with this plan",
                    gone->layer, gone->head));
  }
  if (tokens < 1 || tokens > length()) {
    throw UserError(
        fmt::format("cannot correct {} tokens of a sequence of {}; give 1 to {}", tokens, length(), length()));
  }
  impl().engine->correct(impl().sequence, tokens);
}

std::vector<float> Sequence::heat(int layer) const {
  require_head(*impl().engine, layer, 0);
  const attention::SequenceState& state = impl().sequence.attention;
  return state.has_heat() ? state.heat(layer) : std::vector<float>();
}

std::vector<float> Sequence::statistic(int layer, int kv_head) const {
  require_head(*impl().engine, layer, kv_head);
  const attention::SequenceState& state = impl().sequence.attention;
  return *state.statistics[state.head(layer, kv_head)];
}

std::vector<std::int32_t> Sequence::live(int layer, int kv_head) const {
  require_head(*impl().engine, layer, kv_head);
  return kv::live_positions(*impl().engine->cache, impl().sequence.id, layer, kv_head);
}

std::vector<std::vector<std::int32_t>> Sequence::chosen_units(int layer, int kv_head) const {
  require_head(*impl().engine, layer, kv_head);
  const ActiveSequence& sequence = impl().sequence;
  const attention::SequenceState& state = sequence.attention;
  const kv::KeyIndex* const index = state.indices[state.head(layer, kv_head)].get();
  const attention::PublishedSet& set = state.sets.at({layer, kv_head});
  if (index == nullptr || set.everything || sequence.steps == 0) return {};
  std::vector<std::vector<std::int32_t>> units;
  for (const std::vector<std::int32_t>& list : set.lists) units.push_back(index->units_of(list, sequence.length));
  return units;
}

std::vector<float> Sequence::value(int layer, int kv_head, std::int64_t position) const {
  require_head(*impl().engine, layer, kv_head);
  return kv::value_at(*impl().engine->cache, impl().sequence.id, layer, kv_head, position);
}

Sequence Sequence::fork(const plan::Plan& plan) const {
  return fork(plan, length());
}

/// The state of a fork of `source` under `plan` at `length`: what is not taken over is built when it is first read.
void Engine::State::fork_state(const ActiveSequence& source, std::int64_t length, ActiveSequence& fork) const {
  if (length == source.length && fork.plan() == source.plan()) {
    fork.attention = source.attention;
    fork.open_prompt = source.open_prompt;
    return;
  }
  fork.attention = attention::SequenceState(fork.plan(), gates);
  if (length == source.length) {
    fork.attention.take_over(source.attention, source.plan(), fork.plan(), source.length);
    fork.open_prompt = source.open_prompt;
    return;
  }
  const auto end = static_cast<std::ptrdiff_t>(length);
  fork.attention.boundaries.assign(source.attention.boundaries.begin(), source.attention.boundaries.begin() + end);
  // Inside a prompt it is a part of one, whose rest may come.
  fork.open_prompt = source.attention.decode_steps == 0 || length <= source.attention.prompt_tokens;
  if (fork.open_prompt) return;
  fork.attention.prompt_tokens = source.attention.prompt_tokens;
  fork.attention.decode_steps = length - source.attention.prompt_tokens;
}

/// True where each head of a fork, whose state is made, reads no more of what waits in the tier than its source: it has
/// the same index and the same factors, and brings back what its sets name.
bool Engine::State::goes_on_waiting(const ActiveSequence& source, const ActiveSequence& fork) const {
  if (fork.length != source.length) return false;
  if (fork.plan() == source.plan()) return true;
  for (int layer = 0; layer < fork.plan().shape.layers; ++layer) {
    for (int head = 0; head < fork.plan().shape.kv_heads; ++head) {
      if (cache->waiting_pages(source.id, layer, head) == 0) continue;
      const plan::Retention* const kept = fork.program->head(layer, head).kept;
      if (kept == nullptr || kept->rule != plan::RetentionRule::host_tier) return false;
      const std::size_t at = fork.attention.head(layer, head);
      const auto& from = source.attention.indices[at];
      const auto& to = fork.attention.indices[at];
      if (!from || !to || from->covered() != to->covered()) return false;
      const auto of_layer = static_cast<std::size_t>(layer);
      if (fork.attention.low_rank[of_layer] != source.attention.low_rank[of_layer]) return false;
    }
  }
  return true;
}

Sequence Sequence::fork(const plan::Plan& plan, std::int64_t tokens) const {
  const Impl& mine = this->impl();
  Engine::State& engine = *mine.engine;
  const Busy busy(engine.busy, "Sequence::fork");
  const ActiveSequence& source = mine.sequence;
  require_whole(source);
  engine.require(plan);
  if (tokens != source.length && (tokens < 1 || tokens > source.length)) {
    throw UserError(fmt::format("a fork of the first {} tokens of a sequence that has {}; give 1 to {}", tokens,
                                source.length, source.length));
  }
  if (const auto gone = tokens < source.length ? engine.forgetful_head(source) : std::nullopt) {
    throw UserError(
        fmt::format("layer {}, KV head {} has forgotten tokens, so the first {} cannot be forked; fork all of them, or "
                    "take a method that keeps the whole cache",
                    gone->layer, gone->head, tokens));
  }
  for (int layer = 0; layer < plan.shape.layers && !(plan == source.plan()); ++layer) {
    for (int head = 0; head < plan.shape.kv_heads; ++head) {
      if (engine.cache->live_tokens(source.id, layer, head) == source.length) continue;
      if (reads_what_is_left(source.plan(), plan, layer, head)) continue;
      throw UserError(
          fmt::format("plan '{}' could need tokens that layer {}, KV head {} has forgotten under '{}'; fork "
                      "before the first decoded token, or prefill a new sequence",
                      plan.policy, layer, head, source.plan().policy));
    }
  }
  auto impl = std::make_unique<Impl>(&mine);
  impl->sequence.program = engine.program_of(plan);
  engine.fork_state(source, tokens, impl->sequence);
  impl->sequence.tokens.assign(source.tokens.begin(), source.tokens.begin() + static_cast<std::ptrdiff_t>(tokens));
  impl->sequence.length = tokens;
  impl->sequence.id = engine.cache->fork(source.id);
  // When what has to come back does not fit, the fork goes as it came.
  if (!engine.goes_on_waiting(source, impl->sequence)) engine.cache->recall_all(impl->sequence.id);
  if (tokens < source.length) engine.cache->truncate(impl->sequence.id, source.length - tokens);
  return Sequence(std::move(impl));
}

std::vector<float> Sequence::key(int layer, int kv_head, std::int64_t position) const {
  require_head(*impl().engine, layer, kv_head);
  return kv::key_at(*impl().engine->cache, impl().sequence.id, layer, kv_head, position);
}

Sequence Engine::open(const plan::Plan& plan) {
  if (state_->passing) throw UserError("Engine::open was called from on_sets; call it when the pass has returned");
  state_->require(plan);
  auto impl = std::make_unique<Sequence::Impl>(state_);
  impl->sequence = state_->open(plan);
  return Sequence(std::move(impl));
}

}  // namespace glimpse::engine
