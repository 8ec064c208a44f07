// The products of a prefill tile of bf16 rows in plain loops: what tests hold the processor's own against. Any thread.
#pragma once

#include "glimpse/kernels/cpu/prefill_bf16.h"

namespace glimpse::kernels {

const Bf16Products* bf16_products_portable();

}  // namespace glimpse::kernels
