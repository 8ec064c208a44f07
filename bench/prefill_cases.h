// The prefill kernels' cases of the attention benchmark: dense tiles, and the passes of a method whose tiles read
// lists, all at the same place. Holds the cache by shared pointer; cases run on any threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/bench_cache.h"

namespace glimpse::bench {

enum class PrefillPass : std::uint8_t {
  dense,
  sparse,   ///< a tenth of the keys before the tile and the tile itself
  lse,      ///< log-sums of what dense tiles see
  columns,  ///< what the tile gives to the keys before it
};

/// `rows` rows, the last of them token number `end`.
struct PrefillRows {
  PrefillPass pass = PrefillPass::dense;
  int end = 0;
  int rows = 0;
};

/// What is measured for a shape in a context of so many tokens.
std::vector<PrefillRows> prefill_rows(const Shape& shape, int tokens);
std::string prefill_name(const Shape& shape, const PrefillRows& rows);
Case prefill_case(const Shared& cache, const PrefillRows& rows);

}  // namespace glimpse::bench
