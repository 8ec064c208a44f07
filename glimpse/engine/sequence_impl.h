// What a Sequence is. Inside engine only.
#pragma once

#include "glimpse/engine/engine.h"
#include "glimpse/engine/state.h"

namespace glimpse::engine {

struct Sequence::Impl {
  Engine::State* engine = nullptr;
  ActiveSequence sequence;
  ~Impl() { engine->close(sequence); }
};

}  // namespace glimpse::engine
