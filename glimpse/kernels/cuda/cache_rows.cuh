// Writing single rows of K and V into the cache.
#pragma once

#include <cuda_fp16.h>

#include "glimpse/kernels/cuda/share.cuh"

namespace glimpse::kernels::cuda {

/// The bits that base/dtype.h's functions give: round to nearest even; NaN stays NaN.
__device__ inline std::uint16_t cache_bits(float x, KvType type) {
  const std::uint32_t bits = __float_as_uint(x);
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  if (type == KvType::bf16) {
    if (nan) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
    return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
  }
  if (nan) return static_cast<std::uint16_t>((bits >> 16 & 0x8000U) | 0x7e00U);
  return __half_as_ushort(__float2half_rn(x));
}

/// Where a row's own K and V lie, of one KV head: in elements from the beginning of a plane.
__device__ inline std::size_t own_row(const Cache& cache, int row, const HeadView& view) {
  const int slot = seen_slots(cache, row, view) - 1;
  return (static_cast<std::size_t>(view.pages[slot >> kPageShift]) * kPageTokens + (slot & (kPageTokens - 1))) *
         static_cast<std::size_t>(cache.dim);
}

}  // namespace glimpse::kernels::cuda
