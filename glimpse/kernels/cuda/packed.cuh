// Super blocks of packed weights in the hands of a warp: copied to shared memory, read tile by tile, made into the left
// side of a product.
#pragma once

#include <cuda_fp16.h>

#include "glimpse/kernels/cuda/copies.cuh"
#include "glimpse/kernels/cuda/mma.cuh"
#include "glimpse/kernels/cuda/packed.h"

namespace glimpse::kernels::cuda {

/// Where the parts of a super block of 16 outputs lie, in bytes.
template <Packing kPacking>
struct SuperBytes {
  static constexpr int kHigh = 512 * kPacking.low_words();
  static constexpr int kScales = kHigh + 512 * kPacking.high_words();
  static constexpr int kMore = kScales + 4 * static_cast<int>(PackedLayout{kPacking}.scale_words());
  static constexpr int kOfMore = 4 * static_cast<int>(PackedLayout{kPacking}.more_words());
  static constexpr int kAll = kMore + kOfMore;
  /// From one to the next in shared memory. A copy is fast where both sides lie alike in 128 bytes, so a super block
  /// that begins in the middle of those does so on both.
  static constexpr int kPlace = (kAll + 127) / 128 * 128;
  static constexpr bool kHalves = kPlace != kAll;
  static_assert(kAll % 64 == 0);
};

/// Where super block `number` of a matrix lies in its place.
template <Packing kPacking>
__device__ int place_offset(int number) {
  return SuperBytes<kPacking>::kHalves ? number % 2 * 64 : 0;
}

/// A matrix in the memory of the device.
struct MatrixBytes {
  const std::byte* words;
  int outputs, inputs, supers;
};

/// Of bf16 a super block in shared memory is its 16 rows, 512 bytes each. Those of odd rows change places in fours of
/// 16 bytes, so that threads that read two rows at a time find them in all banks.
__device__ inline int bf16_place(int row, int piece) {
  return row * 512 + (piece ^ (row & 1) * 4) * 16;
}

/// Begins to copy a super block of bf16, zeros for what is behind the matrix; all threads of a warp.
__device__ inline void copy_bf16_super(std::uint32_t to, const MatrixBytes& of, int block_row, int super, int lane) {
  const int input = super * kPackedInputs + lane * 8;
  const std::size_t row_bytes = static_cast<std::size_t>(of.inputs) * 2;
  const std::byte* from = of.words + static_cast<std::size_t>(block_row) * kPackedRows * row_bytes + input * 2;
#pragma unroll
  for (int row = 0; row < kPackedRows; ++row) {
    const bool there = input < of.inputs && block_row * kPackedRows + row < of.outputs;
    copy_16_bytes<true>(to + bf16_place(row, lane), there ? from + row * row_bytes : of.words, there);
  }
}

/// Begins to copy a super block; all threads of a warp. `lane`: the thread's.
template <Packing kPacking>
__device__ void copy_super(std::uint32_t to, const std::byte* from, int lane) {
  constexpr int kPieces = SuperBytes<kPacking>::kAll / 16;
  to += static_cast<std::uint32_t>(lane) * 16;
  from += lane * 16;
#pragma unroll
  for (int i = 0; i < kPieces / 32; ++i) copy_16_bytes<true>(to + i * 512, from + i * 512, true);
  if (lane < kPieces % 32) copy_16_bytes<true>(to + kPieces / 32 * 512, from + kPieces / 32 * 512, true);
}

/// What a thread has of a tile's integers.
template <Packing kPacking>
struct TileIntegers {
  std::uint32_t low[kPacking.low_words()];
  std::uint32_t high[kPacking.high_words() == 0 ? 1 : kPacking.high_words()];
};

/// Of bf16: eight neighbouring inputs of outputs r and r + 8, of both groups of the tile.
__device__ inline void read_bf16(const std::byte* from, int tile, std::uint32_t* to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int group = i / 2, half = i % 2;
    const uint4 eight =
        *reinterpret_cast<const uint4*>(from + bf16_place(lane / 4 + 8 * half, tile * 8 + group * 4 + lane % 4));
    std::uint32_t* const steps = to + group * 8 + half;
    steps[0] = eight.x;
    steps[2] = eight.y;
    steps[4] = eight.z;
    steps[6] = eight.w;
  }
}
template <Packing kPacking>
__device__ void read_low(const std::byte* from, int tile, std::uint32_t* to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kFours = kPacking.low_words() / 4;
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const uint4 four = *reinterpret_cast<const uint4*>(from + (tile * kFours + i) * 512 + lane * 16);
    to[i * 4] = four.x;
    to[i * 4 + 1] = four.y;
    to[i * 4 + 2] = four.z;
    to[i * 4 + 3] = four.w;
  }
}

/// `from`: a super block in shared memory.
template <Packing kPacking>
__device__ TileIntegers<kPacking> read_integers(const std::byte* from, int tile) {
  using Bytes = SuperBytes<kPacking>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  TileIntegers<kPacking> to;
  if constexpr (kPacking.in_rows()) {
    read_bf16(from, tile, to.low);
  } else {
    read_low<kPacking>(from, tile, to.low);
  }
  if constexpr (kPacking.high_words() == 1) {
    to.high[0] = *reinterpret_cast<const std::uint32_t*>(from + Bytes::kHigh + lane * 16 + tile * 4);
  } else if constexpr (kPacking.high_words() == 2) {
    const uint2 both = *reinterpret_cast<const uint2*>(from + Bytes::kHigh + tile / 2 * 512 + lane * 16 + tile % 2 * 8);
    to.high[0] = both.x;
    to.high[1] = both.y;
  }
  return to;
}

/// What a tile's integers are multiplied by, of outputs r and r + 8, as the file has it.
template <Packing kPacking>
struct TileScales {
  std::uint32_t scales[2], offsets[2];
};

/// `from`: a super block in shared memory.
template <Packing kPacking>
__device__ TileScales<kPacking> read_scales(const std::byte* from, int tile) {
  using Bytes = SuperBytes<kPacking>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  TileScales<kPacking> to{};
#pragma unroll
  for (int i = 0; i < (kPacking.in_rows() ? 0 : 2); ++i) {
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
__device__ GroupScales group_scales(const TileScales<kPacking>& of, const SuperScales& super, int group) {
  GroupScales to{};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if constexpr (kPacking.in_rows()) {
      to.scale[0][i] = to.scale[1][i] = 1;
    } else if constexpr (kPacking.scales == Scales::super_offset) {
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

/// What widening ors into, and the masks: in registers, for an instruction takes one constant alone.
struct Widening {
  std::uint32_t base, four, seven, eighth;

  __device__ Widening() {
    asm volatile("mov.b32 %0, 0x43004300;" : "=r"(base));
    asm volatile("mov.b32 %0, 0x000f000f;" : "=r"(four));
    asm volatile("mov.b32 %0, 0x007f007f;" : "=r"(seven));
    asm volatile("mov.b32 %0, 0x00800080;" : "=r"(eighth));
  }
  /// x & mask | base
  __device__ static std::uint32_t merged(std::uint32_t x, std::uint32_t mask, std::uint32_t base) {
    std::uint32_t to;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(to) : "r"(x), "r"(mask), "r"(base));
    return to;
  }
  /// x & mask ^ base
  __device__ static std::uint32_t turned(std::uint32_t x, std::uint32_t mask, std::uint32_t base) {
    std::uint32_t to;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(to) : "r"(x), "r"(mask), "r"(base));
    return to;
  }
};

/// Pair j of a step's integers as bf16, exact: less Packing::zero(), or kMore: as they are, and kTooMuch more. 0x4300
/// is 128 in bf16, whose last bit is 1: below 128 an integer is its last bits.
template <Packing kPacking, bool kMore>
__device__ std::uint32_t widened(const TileIntegers<kPacking>& from, int step, int j, const Widening& by) {
  if constexpr (kPacking.in_rows()) {
    return from.low[step * 4 + j];
  } else if constexpr (kPacking.bits == 8) {  // seven bits and 128, less 128 where the eighth is set, else 256
    const std::uint32_t both = from.low[step * 2 + j / 2] >> 8 * (j % 2);
    const std::uint32_t less = Widening::turned(both, by.eighth, 0xc380c380U);
    return multiply_add_twos(Widening::merged(both, by.seven, by.base), bf16_twos(1), less);
  } else {
    std::uint32_t bits = Widening::merged(from.low[step] >> 4 * j, by.four, by.base);
    if constexpr (kPacking.bits == 5) bits = Widening::merged(moved(from.high[0], step * 4 + j - 4), 0x00100010U, bits);
    if constexpr (kPacking.bits == 6) {
      bits = Widening::merged(moved(from.high[step / 2], 2 * (step % 2 * 4 + j) - 4), 0x00300030U, bits);
    }
    return kMore ? bits : multiply_add_twos(bits, bf16_twos(1), bf16_twos(-kTooMuch - kPacking.zero()));
  }
}
template <Packing kPacking, bool kMore>
__device__ void widen_integers(const TileIntegers<kPacking>& from, int step, const Widening& by,
                               std::uint32_t (&to)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) to[j] = widened<kPacking, kMore>(from, step, j, by);
}

}  // namespace glimpse::kernels::cuda
