// What of a saved session, or of a sequence in memory, serves a prompt under a plan. Pure functions; any thread. Inside
// engine only; docs/sessions.md has the rule.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "glimpse/plan/plan.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::engine {

/// What there is to go on from. It borrows tokens and plan.
struct Held {
  std::span<const text::Token> tokens;
  const plan::Plan* plan = nullptr;
  std::int64_t prompt_tokens = 0, decode_steps = 0;
  bool whole = true;    ///< no head forgot a token
  bool logits = false;  ///< of the last token are there
};

/// What is asked for. It borrows prompt and plan.
struct Wanted {
  std::span<const text::Token> prompt;
  const plan::Plan* plan = nullptr;
  std::int64_t chunk = 1;  ///< prompt rows of a pass under the plan
};

/// What serves the prompt: its first tokens.
struct Share {
  std::int64_t tokens = 0;
  bool state = false;  ///< with all that attention keeps, not rows alone
  std::string why_less;
};

std::int64_t common_prefix(std::span<const text::Token> a, std::span<const text::Token> b);

Share share_of(const Held& held, const Wanted& wanted);

}  // namespace glimpse::engine
