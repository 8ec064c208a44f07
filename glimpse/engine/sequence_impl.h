// What a Sequence is. Inside engine only.
#pragma once

#include <memory>

#include "glimpse/engine/active_sequence.h"
#include "glimpse/engine/runtime.h"
#include "glimpse/engine/sequence.h"

namespace glimpse::engine {

struct Sequence::Impl {
  Runtime* runtime;                 ///< the engine's, while `alive` has not expired
  std::weak_ptr<const void> alive;  ///< the engine
  ActiveSequence sequence;

  Impl(Runtime& of, std::weak_ptr<const void> engine) : runtime(&of), alive(std::move(engine)) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (!alive.expired()) close_sequence(runtime->cache(), sequence);
  }
};

}  // namespace glimpse::engine
