// How rows of K and V lie in the cache, for each of its types: bf16 and f16 as they are; of q8_0 signed bytes (the type
// std::int8_t here), whose scales, one for each row, lie behind a page's rows (kernels/views.h).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "glimpse/kernels/views.h"

namespace glimpse::kernels::cuda {

template <class T>
inline constexpr bool kScaled = __is_same(T, std::int8_t);

/// What tensor cores take: bytes are exact in f16.
template <class T>
struct Multiplied {
  using Type = T;
};
template <>
struct Multiplied<std::int8_t> {
  using Type = __half;
};
template <class T>
using MultipliedAs = typename Multiplied<T>::Type;

/// Bytes from a page's beginning to the next.
template <class T>
__host__ __device__ constexpr std::size_t page_bytes_of(int dim) {
  return static_cast<std::size_t>(kPageTokens) * (static_cast<std::size_t>(dim) * sizeof(T) + (kScaled<T> ? 4 : 0));
}
/// A row by its number: a page's number times kPageTokens, and the slot.
template <class T>
__device__ inline std::size_t row_offset(std::size_t number, int dim) {
  return number * (static_cast<std::size_t>(dim) * sizeof(T)) +
         (kScaled<T> ? number / kPageTokens * (kPageTokens * 4) : 0);
}
template <class T>
__device__ inline std::size_t scale_offset(std::size_t number, int dim) {
  return number / kPageTokens * page_bytes_of<T>(dim) +
         static_cast<std::size_t>(kPageTokens) * static_cast<std::size_t>(dim) + number % kPageTokens * 4;
}
__device__ inline std::size_t row_number(const HeadView& view, int slot) {
  return static_cast<std::size_t>(view.pages[slot >> kPageShift]) * kPageTokens +
         static_cast<std::size_t>(slot & (kPageTokens - 1));
}

/// Both halves of a word as floats.
__device__ inline float2 two_of(std::uint32_t bits, __nv_bfloat16) {
  return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000U));
}
__device__ inline float2 two_of(std::uint32_t bits, __half) {
  return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}

/// A row as floats.
template <class T>
class StoredRow {
 public:
  __device__ StoredRow(const std::byte* plane, std::size_t number, int dim) : row_(plane + row_offset<T>(number, dim)) {
    if constexpr (kScaled<T>) scale_ = *reinterpret_cast<const float*>(plane + scale_offset<T>(number, dim));
  }
  __device__ float at(int i) const {
    if constexpr (kScaled<T>) {
      return static_cast<float>(reinterpret_cast<const std::int8_t*>(row_)[i]) * scale_;
    } else {
      return static_cast<float>(reinterpret_cast<const T*>(row_)[i]);
    }
  }
  /// Dimensions 2 `pair` and the one behind.
  __device__ float2 both(int pair) const {
    if constexpr (kScaled<T>) {
      const char2 two = reinterpret_cast<const char2*>(row_)[pair];
      return make_float2(static_cast<float>(two.x) * scale_, static_cast<float>(two.y) * scale_);
    } else {
      return two_of(reinterpret_cast<const std::uint32_t*>(row_)[pair], T());
    }
  }

 private:
  const std::byte* row_;
  float scale_ = 1;
};

/// Eight bytes times their scale, as f16.
__device__ inline uint4 eight_halves(uint2 bytes, float scale) {
  const auto two = [scale](std::uint32_t word, int first) {
    const auto value = [&](int i) { return static_cast<float>(static_cast<std::int8_t>(word >> (8 * i))) * scale; };
    return std::uint32_t{__half_as_ushort(__float2half_rn(value(first)))} |
           std::uint32_t{__half_as_ushort(__float2half_rn(value(first + 1)))} << 16;
  };
  return make_uint4(two(bytes.x, 0), two(bytes.x, 2), two(bytes.y, 0), two(bytes.y, 2));
}

/// What `choose` makes of a value of the type that the kernels have for a cache's. Host code.
template <class Choose>
auto for_stored(KvType type, const Choose& choose) {
  if (type == KvType::f16) return choose(__half());
  if (type == KvType::q8_0) return choose(std::int8_t());
  return choose(__nv_bfloat16());
}

}  // namespace glimpse::kernels::cuda
