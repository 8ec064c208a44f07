// Logits of a given text, every position. The engine outlives the call; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "glimpse/engine/engine.h"

namespace glimpse::evaluate {

using engine::Token;

/// Takes the logits after the token at `position`; false ends the run.
using OnLogits = std::function<bool(std::int64_t position, std::span<const float> logits)>;

struct ForcedText {
  std::span<const Token> tokens;
  std::int64_t prefill = 0;  ///< the first tokens, by the plan's prefill in chunks; the rest one by one by the plan
  std::int64_t first_wanted = 0;  ///< positions before it get no logits; whole chunks before it no output projection
  std::function<bool()> go_on;    ///< asked before each chunk of the prefill; false ends the run. Empty: always
};

/// Of a text whose first tokens are prefilled and whose others are decoded: throws UserError where one of the two has
/// none.
void require_prompt(std::int64_t prompt, std::int64_t length);

/// Feeds the tokens whatever the model would have said. Returns what attention read in the decoded part.
engine::AttentionStats forced_logits(engine::Engine& engine, const plan::Plan& plan, const ForcedText& text,
                                     const OnLogits& on_logits);

}  // namespace glimpse::evaluate
