// The prefill kernels' cases of the attention benchmark: dense tiles, and the passes of a method whose tiles read
// lists, all at the same place. Holds the cache by shared pointer; cases run on any threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "glimpse/evaluate/kernel_cases.h"

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

/// How far outputs of prompt rows may be from the reference's: queries and weights are rounded to bf16 where the
/// processor multiplies those.
double prefill_allowed(KvType type);
/// This thread's workspace of the prefill kernels.
std::span<std::byte> prefill_space(const evaluate::KernelShape& shape);

/// What is measured for a shape in a context of so many tokens.
std::vector<PrefillRows> prefill_rows(const evaluate::KernelShape& shape, int tokens);
std::string prefill_name(const evaluate::KernelShape& shape, const PrefillRows& rows);
evaluate::KernelCase prefill_case(const evaluate::SharedCache& cache, const PrefillRows& rows);

}  // namespace glimpse::bench
