// Super blocks of packed weights in the hands of a warp: copied to shared memory, read tile by tile, made into the left
// side of a product.
#pragma once

#include <cuda_fp16.h>

#include "glimpse/kernels/cuda/mma.cuh"
#include "glimpse/kernels/cuda/packed.h"

namespace glimpse::kernels::cuda {

/// The begins of a matrix's parts.
struct PackedParts {
  const std::uint32_t *low, *high, *scales, *more;
};

inline PackedParts parts_of(const Packed<Place::device>& weight) {
  const std::uint32_t* const words = weight.words.raw();
  const PackedLayout& layout = weight.layout;
  return {words, words + layout.high(), words + layout.scales(), words + layout.more()};
}

/// Bytes of a super block of 16 outputs in shared memory.
template <Packing kPacking>
struct SuperBytes {
  static constexpr int kHigh = 2048;
  static constexpr int kScales = kHigh + 512 * kPacking.high_words();
  static constexpr int kMore = kScales + 256;
  static constexpr int kOfMore = kPacking.scales == Scales::block          ? 0
                                 : kPacking.scales == Scales::block_offset ? 256
                                                                           : 64;
  static constexpr int kAll = kMore + kOfMore;
};

__device__ inline void copy_later(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void end_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits for all groups of this thread's copies but the last kLater.
template <int kLater>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

/// Begins to copy super block `number`; all threads of a warp.
template <Packing kPacking>
__device__ void copy_super(std::uint32_t to, const PackedParts& from, std::size_t number) {
  using Bytes = SuperBytes<kPacking>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) copy_later(to + i * 512 + lane * 16, from.low + number * 512 + i * 128 + lane * 4);
#pragma unroll
  for (int i = 0; i < kPacking.high_words(); ++i) {
    copy_later(to + Bytes::kHigh + i * 512 + lane * 16,
               from.high + number * (128 * kPacking.high_words()) + i * 128 + lane * 4);
  }
  if (lane < 16) {
    copy_later(to + Bytes::kScales + lane * 16, from.scales + number * 64 + lane * 4);
  } else if (lane < 16 + Bytes::kOfMore / 16) {
    copy_later(to + Bytes::kMore + (lane - 16) * 16, from.more + number * (Bytes::kOfMore / 4) + (lane - 16) * 4);
  }
}

/// What a thread has of a tile: its integers, and of outputs r and r + 8 what their 64 inputs are multiplied by.
template <Packing kPacking>
struct Tile {
  uint4 low;
  std::uint32_t high[kPacking.high_words() == 0 ? 1 : kPacking.high_words()];
  std::uint32_t scales[2], offsets[2];
};

/// `from`: a super block in shared memory.
template <Packing kPacking>
__device__ Tile<kPacking> read_tile(const std::byte* from, int tile) {
  using Bytes = SuperBytes<kPacking>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Tile<kPacking> to;
  to.low = *reinterpret_cast<const uint4*>(from + tile * 512 + lane * 16);
  if constexpr (kPacking.high_words() == 1) {
    to.high[0] = *reinterpret_cast<const std::uint32_t*>(from + Bytes::kHigh + lane * 16 + tile * 4);
  } else if constexpr (kPacking.high_words() == 2) {
    const uint2 both = *reinterpret_cast<const uint2*>(from + Bytes::kHigh + tile / 2 * 512 + lane * 16 + tile % 2 * 8);
    to.high[0] = both.x;
    to.high[1] = both.y;
  } else if constexpr (kPacking.high_words() == 4) {
    const uint4 all = *reinterpret_cast<const uint4*>(from + Bytes::kHigh + tile * 512 + lane * 16);
    to.high[0] = all.x;
    to.high[1] = all.y;
    to.high[2] = all.z;
    to.high[3] = all.w;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = lane / 4 + 8 * i;
    const std::byte* const scales = from + Bytes::kScales + row * 16;
    if constexpr (kPacking.scales == Scales::super_offset) {
      to.scales[i] = *reinterpret_cast<const std::uint16_t*>(scales + tile * 2);
      to.offsets[i] = *reinterpret_cast<const std::uint16_t*>(scales + 8 + tile * 2);
    } else {
      to.scales[i] = *reinterpret_cast<const std::uint32_t*>(scales + tile * 4);
    }
    if constexpr (kPacking.scales == Scales::block_offset) {
      to.offsets[i] = *reinterpret_cast<const std::uint32_t*>(from + Bytes::kMore + row * 16 + tile * 4);
    }
  }
  return to;
}

__device__ inline float half_of(std::uint32_t both, int i) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(i == 0 ? both & 0xffffU : both >> 16)));
}
/// Byte i of four as a float: 0x4b000000 is 2^23, whose last bit is 1.
__device__ inline float byte_of(std::uint32_t four, int i) {
  return __uint_as_float(__byte_perm(four, 0x4b000000U, 0x7440U | static_cast<unsigned>(i))) - 8388608.0F;
}

/// d and e of a super block, of outputs r and r + 8; zeros where blocks have scales of their own.
struct SuperScales {
  float d[2], e[2];
};
template <Packing kPacking>
__device__ SuperScales read_super_scales(const std::byte* from) {
  using Bytes = SuperBytes<kPacking>;
  SuperScales to{};
  if constexpr (Bytes::kOfMore == 64) {
    const int row = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto both = *reinterpret_cast<const std::uint32_t*>(from + Bytes::kMore + (row + 8 * i) * 4);
      to.d[i] = half_of(both, 0);
      to.e[i] = half_of(both, 1);
    }
  }
  return to;
}

/// Of 32 inputs of a tile: what integers are multiplied by, of each step of 16; what is added to the product.
struct GroupScales {
  float scale[2][2];  ///< [step, output r and r + 8]
  float offset[2];
};
template <Packing kPacking>
__device__ GroupScales group_scales(const Tile<kPacking>& of, const SuperScales& super, int group) {
  GroupScales to{};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if constexpr (kPacking.scales == Scales::super_offset) {
      to.scale[0][i] = to.scale[1][i] = super.d[i] * byte_of(of.scales[i], group);
      to.offset[i] = -super.e[i] * byte_of(of.offsets[i], group);
    } else if constexpr (kPacking.scales == Scales::super_signed) {
      to.scale[0][i] = super.d[i] * (byte_of(of.scales[i], group * 2) - 128.0F);
      to.scale[1][i] = super.d[i] * (byte_of(of.scales[i], group * 2 + 1) - 128.0F);
    } else {
      to.scale[0][i] = to.scale[1][i] = half_of(of.scales[i], group);
      if constexpr (kPacking.scales == Scales::block_offset) to.offset[i] = half_of(of.offsets[i], group);
    }
  }
  return to;
}

__device__ inline std::uint32_t multiply_add_twos(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ constexpr std::uint32_t bf16_twos(float x) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x) >> 16;
  return bits | bits << 16;
}
__device__ inline std::uint32_t moved(std::uint32_t bits, int right) {
  return right >= 0 ? bits >> right : bits << -right;
}

/// What widen_integers() leaves in its values where it may.
inline constexpr float kTooMuch = 128;

/// A step's integers as pairs of bf16, exact: less Packing::zero(), or kMore: as they are, and kTooMuch more. 0x4300 is
/// 128 in bf16, whose last bit is 1: below 128 an integer is its last bits.
template <Packing kPacking, bool kMore>
__device__ void widen_integers(const Tile<kPacking>& from, int step, std::uint32_t (&to)[4]) {
  const std::uint32_t low = step == 0 ? from.low.x : step == 1 ? from.low.y : step == 2 ? from.low.z : from.low.w;
  const std::uint32_t high = from.high[step * kPacking.high_words() / 4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    std::uint32_t bits = low >> 4 * j & 0x000f000fU;
    if constexpr (kPacking.bits == 5) bits |= moved(high, step * 4 + j - 4) & 0x00100010U;
    if constexpr (kPacking.bits == 6) bits |= moved(high, 2 * (step % 2 * 4 + j) - 4) & 0x00300030U;
    bits |= 0x43004300U;
    if constexpr (kMore) {
      to[j] = bits;
    } else if constexpr (kPacking.bits < 8) {
      to[j] = multiply_add_twos(bits, bf16_twos(1), bf16_twos(-kTooMuch - kPacking.zero()));
    } else {  // 16 (128 + high) - 2304 is 16 high - 256; and 128 + low makes it the integer less 128
      const std::uint32_t upper = (high >> 4 * j & 0x000f000fU) | 0x43004300U;
      to[j] = multiply_add_twos(bits, bf16_twos(1), multiply_add_twos(upper, bf16_twos(16), bf16_twos(-2304)));
    }
  }
}

}  // namespace glimpse::kernels::cuda
