// Which rows of a sequence serve a prompt, by how they were made. Pure functions; any thread. Inside engine only;
// docs/design-notes/prefix-cache.md has the rule.
#pragma once

#include <cstdint>
#include <span>

#include "glimpse/engine/prefix/made.h"
#include "glimpse/engine/request.h"

namespace glimpse::engine {

/// What there is. It borrows all.
struct Offered {
  std::span<const text::Token> tokens;
  const plan::Plan* plan = nullptr;
  const MadeRows* made = nullptr;
  bool whole = true;    ///< no head forgot a token
  bool at_end = false;  ///< what attention keeps at the end of a prompt of these tokens is there, and the logits
};

/// What is asked for. It borrows prompt and plan.
struct Asked {
  std::span<const text::Token> prompt;
  const plan::Plan* plan = nullptr;
  std::int64_t chunk = 1;  ///< prompt rows of a pass under the plan
  Reuse reuse = Reuse::dense;
};

/// What serves the prompt: its first tokens.
struct Admitted {
  std::int64_t tokens = 0;
  bool at_end = false;  ///< the whole prompt, with all that attention keeps, and the logits
};

Admitted admitted(const Offered& offered, const Asked& asked);

}  // namespace glimpse::engine
