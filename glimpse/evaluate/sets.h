// The sets that a plan reads when a given text is decoded, the softmax mass that each of them captures, how many of the
// best tokens are in it, and how much sets and the units that an index chose stay the same. Teacher forcing: the tokens
// are fed whatever the model would have said. The engine outlives the call; one thread, and all callbacks run on it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "glimpse/engine/engine.h"
#include "glimpse/evaluate/set_quality.h"
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

/// What KV heads read, summed over them and over steps. Sparse steps are those in which a head read a set.
struct HeadReads {
  std::int64_t steps = 0, sparse_steps = 0;
  double coverage = 0, coverage_least = 1;  ///< a sum and the least of all steps; 1 where a head reads everything
  SetQuality sets;                          ///< of the sparse steps
  Stability tokens;                         ///< of the sets; a step without one has none behind it to compare with
  Stability units;                          ///< of what an index chose; nothing without one
  HeadReads& operator+=(const HeadReads& other);
};

/// Over (step, layer, KV head).
struct SetsResult {
  engine::AttentionStats attention;
  std::int64_t steps = 0;
  std::optional<double> coverage_mean, coverage_min;  ///< none before the first step
  Stability units;               ///< of the heads with an index, the first step left out; nothing without such heads
  std::vector<HeadReads> heads;  ///< [layers, kv_heads]
};

/// Coverage is computed in double from the cached keys and the query. Keys that a head forgot count with those of a
/// dense prefill, which is run first where the plan forgets. Throws UserError for a prompt outside the text.
SetsResult run_sets(engine::Engine& engine, const plan::Plan& plan, const SetsText& text,
                    const SetsCallbacks& callbacks);

}  // namespace glimpse::evaluate
