// Starts of plans that observe the last rows of a prompt: what one has observed, others take over that would see the
// same. Moves only; the engine outlives it; one thread.
#pragma once

#include <span>
#include <vector>

#include "glimpse/engine/engine.h"

namespace glimpse::evaluate {

struct Start {
  engine::Sequence sequence;
  std::vector<float> logits;  ///< after the prompt
};

class ObservedPrompts {
 public:
  /// Under `plan`, which observes the last rows of a prompt: `prompt`, whose rows before them are taken from `dense`.
  /// It holds them, stays where it is and is not changed. The rest is run once for all plans that observe it alike.
  Start start(const engine::Sequence& dense, const plan::Plan& plan, std::span<const engine::Token> prompt);

 private:
  struct Observed {
    const engine::Sequence* dense;
    plan::Plan plan;
    Start start;
  };
  std::vector<Observed> all_;
};

}  // namespace glimpse::evaluate
