// When a launch begins, and what it may read then. With programmatic launches its blocks may be there before the launch
// before is through. Each says early that the next may begin; what it reads of others' work it reads behind its own
// wait. A launch that makes a layer's gated activations (few_rows.h, wide_rows.h, layers.h) says so only behind that
// wait. So whatever begins later, up to the next such launch, finds the work of all launches before that one complete:
// the attention of a layer that of the layers before, but for the slots that this layer appends. What changes tables
// and older rows before a pass never says so: whatever begins behind it finds it complete.
#pragma once

namespace glimpse::kernels::cuda {

/// `now`: the next launch may begin. Once for each block.
__device__ inline void let_next_begin(bool now = true) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (now) cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/// The launch before is through, and so is what it waited for.
__device__ inline void wait_for_launch_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

/// Waits; the next launch may begin before that, unless this one `holds` it.
__device__ inline void begin_launch(bool holds = false) {
  let_next_begin(!holds);
  wait_for_launch_before();
  let_next_begin(holds);
}

}  // namespace glimpse::kernels::cuda
