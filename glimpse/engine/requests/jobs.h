// Requests in the scheduler's numbers: rows and pages of what comes next. They change nothing. One thread at a time.
// Inside engine only.
#pragma once

#include <cstddef>

#include "glimpse/engine/requests/active_request.h"
#include "glimpse/engine/requests/scheduler.h"
#include "glimpse/engine/runtime.h"

namespace glimpse::engine {

/// Of a request that has not ended.
Job job_of(const Runtime& runtime, const ActiveRequest& request);

/// Rows of the prompt in its next pass.
std::size_t next_chunk(const Runtime& runtime, const ActiveRequest& request);

/// True when nobody but the request holds pages.
bool is_alone(const kv::Cache& cache, const ActiveRequest& request);

/// Heads whose pages a token takes: of all layers.
inline std::int64_t all_heads(const Runtime& runtime) {
  return std::int64_t{runtime.loaded.model.config().layers} * runtime.loaded.model.config().kv_heads;
}

}  // namespace glimpse::engine
