#include "glimpse/kernels/cpu/prefill_bf16.h"

namespace glimpse::kernels {

extern const Bf16Products kAvx512Bf16Products;  // prefill_bf16_avx512.cc

// Only on AMD: a prototype on Zen 4 reached 335 GFLOP/s with vdpbf16ps and 194 with f32 products. This code on Sapphire
// Rapids reached 202 and 353 (two cores, heads of 64), and bf16 products round more.
const Bf16Products* bf16_products() {
  static const bool supported = __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f") &&
                                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
  return supported ? &kAvx512Bf16Products : nullptr;
}

}  // namespace glimpse::kernels
