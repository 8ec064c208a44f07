// What a Sequence is. Inside engine only.
#pragma once

#include "glimpse/engine/engine.h"
#include "glimpse/engine/state.h"

namespace glimpse::engine {

struct Sequence::Impl {
  Engine::State* engine;  ///< while `alive` has not expired
  std::weak_ptr<const void> alive;
  ActiveSequence sequence;

  explicit Impl(const std::shared_ptr<Engine::State>& state) : engine(state.get()), alive(state) {}
  /// Beside another sequence of the same engine.
  explicit Impl(const Impl* other) : engine(other->engine), alive(other->alive) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (!alive.expired()) engine->close(sequence);
  }
};

}  // namespace glimpse::engine
