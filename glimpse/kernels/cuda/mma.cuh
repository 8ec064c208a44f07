// Tensor-core products of 16 x 8 x 16 and the loads that feed them, for bf16 and f16 with f32 sums.
//
// Queries are f32, and eight of them fill half of a tile's sixteen rows: rows 0 to 7 hold what 16 bits say of them,
// rows 8 to 15 what is left. A thread holds row r and row r + 8 of a result, so their sum is the product with nearly
// the whole query (2^-17 of it is lost in bf16), at no cost.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace glimpse::kernels::cuda {

__device__ inline std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

/// sums += a (16 x 16) * b (16 x 8)
template <class T>
__device__ inline void multiply(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (sizeof(T) == 2 && __is_same(T, __nv_bfloat16)) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Two values as bf16, rounded to nearest even; the first in the lower half.
__device__ inline std::uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &both, sizeof bits);
  return bits;
}

__device__ inline void load_matrices(std::uint32_t (&to)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t (&to)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

template <class T>
__device__ inline T narrow(float x) {
  if constexpr (__is_same(T, __nv_bfloat16)) {
    return __float2bfloat16_rn(x);
  } else {
    return __float2half_rn(x);
  }
}
template <class T>
__device__ inline float widen(T x) {
  if constexpr (__is_same(T, __nv_bfloat16)) {
    return __bfloat162float(x);
  } else {
    return __half2float(x);
  }
}

/// Two values in one register: what 16 bits say of them, and in `rest` what is left.
template <class T>
__device__ inline std::uint32_t split(float x, float y, std::uint32_t& rest) {
  const T high[2] = {narrow<T>(x), narrow<T>(y)};
  const T low[2] = {narrow<T>(x - widen<T>(high[0])), narrow<T>(y - widen<T>(high[1]))};
  std::uint32_t both = 0;
  memcpy(&both, high, sizeof both);
  memcpy(&rest, low, sizeof rest);
  return both;
}

inline constexpr float kLogOf2 = 0.69314718055994531F;

__device__ inline float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float or_zero(float x) {
  return x == -INFINITY ? 0.0F : x;
}

/// A running maximum and the sum of exp2(score - maximum).
struct LogSum {
  float largest = -INFINITY;
  float sum = 0;

  __device__ void add(const LogSum& other) {
    const float top = fmaxf(largest, other.largest);
    sum = sum * exp2_of(largest - or_zero(top)) + other.sum * exp2_of(other.largest - or_zero(top));
    largest = top;
  }
  __device__ void add_from(unsigned lanes, int distance) {
    LogSum other;
    other.largest = __shfl_xor_sync(lanes, largest, distance);
    other.sum = __shfl_xor_sync(lanes, sum, distance);
    // The lower lane's part first in both, so that both get the same bits.
    if ((threadIdx.x & static_cast<unsigned>(distance)) != 0) {
      LogSum both = other;
      both.add(*this);
      *this = both;
    } else {
      add(other);
    }
  }
  __device__ float value() const { return (largest + log2f(sum)) * kLogOf2; }
};

}  // namespace glimpse::kernels::cuda
