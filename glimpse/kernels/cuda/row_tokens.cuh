// The token of a row, which the host or the pass before says.
#pragma once

#include "glimpse/kernels/cuda/readings.h"

namespace glimpse::kernels::cuda {

/// Behind the launch's wait.
__device__ inline std::int32_t token_of(const RowTokens& of, int row) {
  const std::int32_t token = of.tokens.raw()[row];
  return token >= 0 ? token : max(of.standings.raw()[-1 - token].at, 0);
}

}  // namespace glimpse::kernels::cuda
