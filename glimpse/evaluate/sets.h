// The sets that a plan reads when a given text is decoded, the softmax mass that each of them captures, and how much
// the units that an index chose stay the same. Teacher forcing: the tokens are fed whatever the model would have said.
// The engine outlives the call; one thread, and all callbacks run on it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "glimpse/engine/engine.h"
#include "glimpse/evaluate/unit_stability.h"

namespace glimpse::evaluate {

using engine::Token;

struct SetsText {
  std::span<const Token> tokens;
  std::int64_t prompt = 0;  ///< the first tokens: the plan's prefill; the rest is decoded one by one
};

struct SetsCallbacks {
  /// Before each decoded token is fed.
  std::function<void(Token token)> on_token;
  /// After its step, for every layer and KV head in order; `coverage` is the mean over the head's query heads, and
  /// exactly 1 where it read everything.
  std::function<void(const engine::SetTrace& sets, double coverage)> on_head;
  /// After on_head of all heads, with what was read since the prefill; false ends the run.
  std::function<bool(const engine::AttentionStats& so_far)> on_step;
};

/// Over (step, layer, KV head).
struct SetsResult {
  engine::AttentionStats attention;
  std::int64_t steps = 0;
  std::optional<double> coverage_mean, coverage_min;  ///< none before the first step
  Stability units;  ///< of the heads with an index, the first step left out; nothing without such heads
};

/// Coverage is computed in double from the cached keys and the query. Keys that a head forgot count with those of a
/// dense prefill, which is run first where the plan forgets. Throws UserError for a prompt outside the text.
SetsResult run_sets(engine::Engine& engine, const plan::Plan& plan, const SetsText& text,
                    const SetsCallbacks& callbacks);

}  // namespace glimpse::evaluate
