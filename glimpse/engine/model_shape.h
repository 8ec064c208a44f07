// What a plan needs to know of a model. A pure function; any thread.
#pragma once

#include "glimpse/model/model.h"
#include "glimpse/plan/plan.h"

namespace glimpse::engine {

inline plan::ModelShape shape_of(const model::Config& config) {
  return {config.architecture, config.name,     config.layers, config.heads,
          config.kv_heads,     config.head_dim, config.context};
}

}  // namespace glimpse::engine
