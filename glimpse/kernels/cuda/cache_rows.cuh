// Writing single rows of K and V into the cache.
#pragma once

#include "glimpse/kernels/cuda/share.cuh"
#include "glimpse/kernels/cuda/stored.cuh"

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

/// Where a row's own K and V lie, of one KV head.
__device__ inline std::size_t own_row(const Cache& cache, int row, const HeadView& view) {
  return row_number(view, seen_slots(cache, row, view) - 1);
}

/// A row of K or V in the cache, to be written by a warp.
class OwnRow {
 public:
  __device__ OwnRow(const Cache& cache, std::byte* plane, std::size_t number) : type_(cache.type) {
    if (type_ == KvType::q8_0) {
      bytes_ = plane + row_offset<std::int8_t>(number, cache.dim);
      scale_ = reinterpret_cast<float*>(plane + scale_offset<std::int8_t>(number, cache.dim));
    } else {
      bytes_ = plane + row_offset<std::uint16_t>(number, cache.dim);
    }
  }
  __device__ bool scaled() const { return type_ == KvType::q8_0; }
  /// Of 16 bits: value i, and values i and i + 1 (i is even).
  __device__ void put(int i, float x) const { halves()[i] = cache_bits(x, type_); }
  __device__ void put_both(int i, float x, float y) const {
    *reinterpret_cast<ushort2*>(halves() + i) = make_ushort2(cache_bits(x, type_), cache_bits(y, type_));
  }
  /// Of bytes: `count` pairs of each lane, whose values have the places `at`; negative: none. The bits of the CPU's
  /// append: a row that is not finite gets a NaN scale.
  template <int kCount>
  __device__ void put_scaled(const float2 (&values)[kCount], const int2 (&at)[kCount]) const {
    float largest = 0;
    bool finite = true;
    for (int i = 0; i < kCount; ++i) {
      if (at[i].x < 0) continue;
      largest = fmaxf(largest, fmaxf(fabsf(values[i].x), fabsf(values[i].y)));
      finite = finite && isfinite(values[i].x) && isfinite(values[i].y);
    }
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, step));
    finite = __all_sync(~0U, finite) != 0;
    const bool zeros = !finite || largest < kLeastOfQ8;
    const float inverse = zeros ? 0 : __fdiv_rn(127.0F, largest), scale = zeros ? 0 : __fdiv_rn(largest, 127.0F);
    const auto byte_of = [&](float x) {
      const float level = zeros ? 0 : fminf(fmaxf(rintf(__fmul_rn(x, inverse)), -127.0F), 127.0F);
      return static_cast<std::int8_t>(level);
    };
    auto* const bytes = reinterpret_cast<std::int8_t*>(bytes_);
    for (int i = 0; i < kCount; ++i) {
      if (at[i].x < 0) continue;
      bytes[at[i].x] = byte_of(values[i].x);
      bytes[at[i].y] = byte_of(values[i].y);
    }
    if (threadIdx.x % 32 == 0) *scale_ = finite ? scale : __int_as_float(0x7fc00000);
  }

 private:
  __device__ std::uint16_t* halves() const { return reinterpret_cast<std::uint16_t*>(bytes_); }

  KvType type_;
  std::byte* bytes_ = nullptr;
  float* scale_ = nullptr;
};

/// A warp writes a row, whose values pair_of(pair) says.
template <class PairOf>
__device__ inline void write_pairs(const OwnRow& to, int dim, const PairOf& pair_of) {
  constexpr int kPairs = kMaxHeadDim / 64;
  float2 values[kPairs];
  int2 at[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int pair = i * 32 + static_cast<int>(threadIdx.x) % 32;
    const bool there = pair < dim / 2;
    values[i] = there ? pair_of(pair) : make_float2(0, 0);
    at[i] = there ? make_int2(2 * pair, 2 * pair + 1) : make_int2(-1, -1);
    if (there && !to.scaled()) to.put_both(2 * pair, values[i].x, values[i].y);
  }
  if (to.scaled()) to.put_scaled(values, at);
}

}  // namespace glimpse::kernels::cuda
