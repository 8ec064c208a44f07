#include "glimpse/kernels/cpu/machine.h"

namespace glimpse::kernels {

int next_keys_shift() {
#if defined(__x86_64__)
  static const bool all = __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f");
  return all ? 0 : 1;
#else
  return 1;
#endif
}

}  // namespace glimpse::kernels
