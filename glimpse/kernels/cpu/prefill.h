// Prefill with a chosen table of bf16 products (null: f32 products): what the public prefill() calls with this
// processor's table, and what tests call with the portable one. Same contract as prefill().
#pragma once

#include <span>

#include "glimpse/kernels/attention.h"
#include "glimpse/kernels/cpu/prefill_bf16.h"

namespace glimpse::kernels {

void prefill_with(const KvFormat& format, const PrefillItem& item, std::span<std::byte> workspace,
                  const Bf16Products* products);

}  // namespace glimpse::kernels
