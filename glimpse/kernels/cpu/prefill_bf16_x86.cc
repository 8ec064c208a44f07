#include "glimpse/kernels/cpu/prefill_bf16.h"

namespace glimpse::kernels {

extern const Bf16Products kAvx512Bf16Products;  // prefill_bf16_avx512.cc

// Only on AMD: Zen 4 executes vdpbf16ps at twice the rate of two f32 FMAs, while Sapphire Rapids measured 202 GFLOP/s
// with it against 353 with f32 (two cores, 64-dimensional heads), and rounds more.
const Bf16Products* bf16_products() {
  static const bool supported = __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f") &&
                                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
  return supported ? &kAvx512Bf16Products : nullptr;
}

}  // namespace glimpse::kernels
