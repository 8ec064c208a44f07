#include "glimpse/kernels/cpu/prefill_bf16.h"

namespace glimpse::kernels {

const Bf16Products* bf16_products() {
  return nullptr;
}

}  // namespace glimpse::kernels
