// Launching a kernel with more shared memory than a launch has unasked. Host code.
#pragma once

#include "glimpse/kernels/cuda/check.h"
#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::kernels::cuda {

/// Bytes that one block may have on every device that the kernels run on.
inline constexpr int kLeastShared = 99 << 10;

/// Stages that fit beside what is fixed, at most `most`.
inline int stages_that_fit(const Limits& limits, int fixed, int stage, int most) {
  const int fit = (limits.shared_bytes - fixed) / stage;
  return fit < most ? fit : most;
}

struct Launch {
  const Limits& limits;
  cudaStream_t stream;
  bool early = true;
};

/// Of a launch that need not know the device but for when it begins.
inline Limits launch_limits(const Stream& stream) {
  Limits limits;
  limits.clusters = stream.device().capability >= 90;
  return limits;
}

template <class Kernel>
void allow_shared(Kernel* kernel, int bytes) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
  // The same division of the memory for all of them: changing it between kernels waits for idle processors.
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
      "shared memory");
}

/// Queues a kernel of begin_kernel().
template <class Arguments>
void launch(void (*kernel)(Arguments), const Arguments& arguments, dim3 shape, int bytes, const Launch& how) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.x;
  config.blockDim = shape.y;
  config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
  config.stream = how.stream;
  config.attrs = &early;
  config.numAttrs = how.limits.clusters && how.early ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments), "launching a kernel");
}

}  // namespace glimpse::kernels::cuda
