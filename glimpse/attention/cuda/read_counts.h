// What a decoding entry of a pass read: counted from lengths, plans, and the counts of sets that came back.
#pragma once

#include <cstdint>

#include "glimpse/attention/cuda/staged_layers.h"
#include "glimpse/attention/records.h"
#include "glimpse/kv/cache.h"

namespace glimpse::attention::cuda {

/// A pass that the stream has passed.
struct PassReads {
  const kv::Cache& cache;
  const PassTables& tables;
  const StagedPlaces& layers;
  const std::int32_t* counts = nullptr;  ///< [2, sets] of sets, and clusters that searches of trees opened
  int group = 1;                         ///< query heads of a KV head
};

/// Adds what entry `number` of the pass's read to `counters`.
void count_reads(const PassReads& pass, std::size_t number, ReadCounters& counters);

}  // namespace glimpse::attention::cuda
