// Compiled with AVX-512 flags. It must not use inline functions of other headers: the linker could pick this file's
// copy of one for code that runs on processors without AVX-512.
#include <immintrin.h>

#include "glimpse/kernels/cpu/prefill_bf16.h"

namespace glimpse::kernels {
namespace {

constexpr int kVectors = kBf16Lanes / 16;
constexpr int kRows = 8;  ///< 8 x 3 accumulators, 3 vectors of lanes and one broadcast fill 28 of 32 registers

inline __m512 multiply_pairs(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

inline __m512i broadcast_pair(const void* pair) {
  return _mm512_set1_epi32(_mm_cvtsi128_si32(_mm_loadu_si32(pair)));
}

void scores_avx512(const Bf16Shape& shape, const std::uint16_t* keys, const std::uint32_t* queries, float* scores) {
  for (int key = 0; key < shape.keys; key += kRows) {
    __m512 sums[kRows][kVectors];
    for (auto& row : sums) {
      for (auto& sum : row) sum = _mm512_setzero_ps();
    }
    const std::uint16_t* rows = keys + key * shape.dim;
    for (int t = 0; t < shape.dim / 2; ++t) {
      const std::uint32_t* at = queries + t * kBf16Lanes;
      const __m512i q0 = _mm512_loadu_si512(at);
      const __m512i q1 = _mm512_loadu_si512(at + 16);
      const __m512i q2 = _mm512_loadu_si512(at + 32);
      for (int r = 0; r < kRows; ++r) {
        const __m512i pair = broadcast_pair(rows + r * shape.dim + 2 * t);
        sums[r][0] = multiply_pairs(sums[r][0], q0, pair);
        sums[r][1] = multiply_pairs(sums[r][1], q1, pair);
        sums[r][2] = multiply_pairs(sums[r][2], q2, pair);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kVectors; ++c) _mm512_storeu_ps(scores + (key + r) * kBf16Lanes + 16 * c, sums[r][c]);
    }
  }
}

inline __m512i round_pair(const float* even, const float* odd) {
  const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(even)));
  const __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(odd)));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

void values_avx512(const Bf16Shape& shape, const std::uint32_t* values, const float* weights, const float* fade,
                   float* out) {
  alignas(64) std::uint32_t pairs[kBf16Keys / 2 * kBf16Lanes];
  for (int t = 0; t < shape.keys / 2; ++t) {
    const float* even = weights + 2 * t * kBf16Lanes;
    for (int c = 0; c < kBf16Lanes; c += 16) {
      _mm512_store_si512(pairs + t * kBf16Lanes + c, round_pair(even + c, even + kBf16Lanes + c));
    }
  }
  for (int i = 0; i < shape.dim; i += kRows) {
    const std::uint32_t* column = values + i * (kBf16Keys / 2);
    __m512 sums[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kVectors; ++c) {
        sums[r][c] =
            _mm512_mul_ps(_mm512_loadu_ps(out + (i + r) * kBf16Lanes + 16 * c), _mm512_loadu_ps(fade + 16 * c));
      }
    }
    for (int t = 0; t < shape.keys / 2; ++t) {
      const std::uint32_t* at = pairs + t * kBf16Lanes;
      const __m512i w0 = _mm512_load_si512(at);
      const __m512i w1 = _mm512_load_si512(at + 16);
      const __m512i w2 = _mm512_load_si512(at + 32);
      for (int r = 0; r < kRows; ++r) {
        const __m512i pair = broadcast_pair(column + t * 8 + r);
        sums[r][0] = multiply_pairs(sums[r][0], w0, pair);
        sums[r][1] = multiply_pairs(sums[r][1], w1, pair);
        sums[r][2] = multiply_pairs(sums[r][2], w2, pair);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kVectors; ++c) _mm512_storeu_ps(out + (i + r) * kBf16Lanes + 16 * c, sums[r][c]);
    }
  }
}

}  // namespace

extern const Bf16Products kAvx512Bf16Products;
const Bf16Products kAvx512Bf16Products{scores_avx512, values_avx512};

}  // namespace glimpse::kernels
