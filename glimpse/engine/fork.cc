#include "glimpse/engine/fork.h"

#include <fmt/format.h>

#include "glimpse/base/error.h"

namespace glimpse::engine {
namespace {

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

/// Throws UserError where a head has forgotten what a fork of so many tokens could need.
void require_kept(const kv::Cache& cache, const ActiveSequence& source, const plan::Plan& plan, std::int64_t tokens) {
  if (tokens != source.length && (tokens < 1 || tokens > source.length)) {
    throw UserError(fmt::format("a fork of the first {} tokens of a sequence that has {}; give 1 to {}", tokens,
                                source.length, source.length));
  }
  if (const auto gone = tokens < source.length ? forgetful_head(cache, source) : std::nullopt) {
    throw UserError(
        fmt::format("layer {}, KV head {} has forgotten tokens, so the first {} cannot be forked; fork all of them, or "
                    "take a method that keeps the whole cache",
                    gone->layer, gone->head, tokens));
  }
  for (int layer = 0; layer < plan.shape.layers && !(plan == source.plan()); ++layer) {
    for (int head = 0; head < plan.shape.kv_heads; ++head) {
      if (cache.live_tokens(source.id, layer, head) == source.length) continue;
      if (reads_what_is_left(source.plan(), plan, layer, head)) continue;
      throw UserError(
          fmt::format("plan '{}' could need tokens that layer {}, KV head {} has forgotten under '{}'; fork "
                      "before the first decoded token, or prefill a new sequence",
                      plan.policy, layer, head, source.plan().policy));
    }
  }
}

/// The state of a fork of `source` under `plan` at `length`: what is not taken over is built when it is first read.
void make_state(const ActiveSequence& source, std::int64_t length, const attention::GateFiles& gates,
                ActiveSequence& fork) {
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
bool goes_on_waiting(const kv::Cache& cache, const ActiveSequence& source, const ActiveSequence& fork) {
  if (fork.length != source.length) return false;
  if (fork.plan() == source.plan()) return true;
  for (int layer = 0; layer < fork.plan().shape.layers; ++layer) {
    for (int head = 0; head < fork.plan().shape.kv_heads; ++head) {
      if (cache.waiting_pages(source.id, layer, head) == 0) continue;
      if (!fork.program->head(layer, head).has_tier()) return false;
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

}  // namespace

ActiveSequence forked(const ActiveSequence& source, const plan::Plan& plan, std::int64_t tokens, Programs& programs,
                      kv::Cache& cache) {
  require_kept(cache, source, plan, tokens);
  ActiveSequence fork;
  fork.program = program_of(plan, programs);
  make_state(source, tokens, programs.gates, fork);
  fork.tokens.assign(source.tokens.begin(), source.tokens.begin() + static_cast<std::ptrdiff_t>(tokens));
  fork.length = tokens;
  fork.made = source.made;
  fork.made.cut(tokens);
  if (!(fork.plan() == source.plan())) fork.made.change_plan();
  fork.id = cache.fork(source.id);
  try {
    // When what has to come back does not fit, the fork goes as it came.
    if (!goes_on_waiting(cache, source, fork)) cache.recall_all(fork.id);
    if (tokens < source.length) cache.truncate(fork.id, source.length - tokens);
  } catch (...) {
    close_sequence(cache, fork);
    throw;
  }
  return fork;
}

}  // namespace glimpse::engine
