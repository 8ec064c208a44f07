// What attention reports of a pass, in the words of the public header. Pure functions; any thread. Inside engine only.
#pragma once

#include <cstdint>

#include "glimpse/attention/records.h"
#include "glimpse/engine/active_sequence.h"
#include "glimpse/engine/attention_stats.h"
#include "glimpse/plan/plan.h"

namespace glimpse::engine {

/// Of one sequence. `row_bytes`: of one row of K or V in the cache.
AttentionStats stats_of(const attention::ReadCounters& counters, std::int64_t row_bytes);

/// It borrows the record's lists.
SetTrace trace_of(const attention::HeadRecord& record, const ActiveSequence& sequence, const plan::ModelShape& shape);

}  // namespace glimpse::engine
