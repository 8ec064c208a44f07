// Launching a kernel with more shared memory than a launch has unasked. Host code.
#pragma once

#include "glimpse/kernels/cuda/check.h"

namespace glimpse::kernels::cuda {

/// Stages that fit beside what is fixed, at most `most`.
inline int stages_that_fit(const Limits& limits, int fixed, int stage, int most) {
  const int fit = (limits.shared_bytes - fixed) / stage;
  return fit < most ? fit : most;
}

template <class Kernel>
void allow_shared(Kernel* kernel, int bytes) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
}

}  // namespace glimpse::kernels::cuda
