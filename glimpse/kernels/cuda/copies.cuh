// Copies of a few bytes from the device's memory to shared memory, which arrive later, in groups of a thread.
#pragma once

#include <cstdint>

namespace glimpse::kernels::cuda {

/// For what is read once in a pass: the second-level cache gives it up first, and keeps the code of kernels, tables and
/// activations.
__device__ inline std::uint64_t read_once() {
  std::uint64_t policy = 0;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// Zeros where it is not `present`.
template <bool kOnce>
__device__ inline void copy_16_bytes(std::uint32_t to, const void* from, bool present) {
  if constexpr (kOnce) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
                 "r"(present ? 16 : 0), "l"(read_once())
                 : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(present ? 16 : 0)
                 : "memory");
  }
}
__device__ inline void copy_4_bytes(std::uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void copy_4_bytes(std::uint32_t to, const void* from, bool present) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(present ? 4 : 0) : "memory");
}
__device__ inline void close_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits for all groups of this thread's copies but the last kLeft.
template <int kLeft>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace glimpse::kernels::cuda
