// Rows of bytes as the right operand of products: each is exact in f16, and rows' scales are multiplied elsewhere,
// those of keys with the scores, those of values with the weights.
//
// A matrix of 8 x 16 bytes is loaded as one of 8 x 8 words of 16 bits. A thread then has four bytes. Of keys they are
// dimensions 4t to 4t + 3 of sixteen (t is its number among four): the first two go where a product has dimensions 2t
// and 2t + 1, the others where it has 2t + 8 and 2t + 9, and queries lie so, too (queries.cuh). Of values, loaded
// transposed, they are two dimensions of two keys: the even one makes one column of results, the odd one the next.
#pragma once

#include <cstdint>

#include "glimpse/kernels/cuda/stored.cuh"

namespace glimpse::kernels::cuda {

/// Two bytes in the lower parts of a word's halves, each 0x6400 and a byte whose highest bit was turned, as f16: such a
/// half is 1,152 more than the signed byte.
__device__ inline std::uint32_t less_1152(std::uint32_t word) {
  std::uint32_t made;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(made) : "r"(word), "r"(0x64806480U));
  return made;
}

/// Keys: the two words of a product's right operand.
__device__ inline void widen_keys(std::uint32_t word, std::uint32_t (&to)[2]) {
  const std::uint32_t turned = word ^ 0x80808080U;
  to[0] = less_1152(__byte_perm(turned, 0x64646464U, 0x4140));
  to[1] = less_1152(__byte_perm(turned, 0x64646464U, 0x4342));
}
/// Values: even dimensions, odd ones.
__device__ inline void widen_values(std::uint32_t word, std::uint32_t& even, std::uint32_t& odd) {
  even = less_1152((word & 0x00ff00ffU) ^ 0x64806480U);
  odd = less_1152((word >> 8 & 0x00ff00ffU) ^ 0x64806480U);
}

/// What weights of values are multiplied by beside the values' scale, so that small ones keep their digits in f16.
inline constexpr float kWeightScale = 256;

/// Scales of this thread's keys of a tile: n * 8 + lane % 4 * 2 + e.
template <class T, int kKeys>
struct KeyScales {
  __device__ explicit KeyScales(std::uint32_t) {}
  __device__ float at(int, int) const { return 1; }
};
template <int kKeys>
struct KeyScales<std::int8_t, kKeys> {
  float2 two[kKeys / 8];

  /// From their address in shared memory.
  __device__ explicit KeyScales(std::uint32_t address) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                   : "=f"(two[n].x), "=f"(two[n].y)
                   : "r"(address + static_cast<std::uint32_t>(n * 8 + static_cast<int>(threadIdx.x) % 4 * 2) * 4)
                   : "memory");
    }
  }
  __device__ float at(int n, int e) const {
    return e == 0 ? two[n].x : two[n].y;
  }
};

}  // namespace glimpse::kernels::cuda
