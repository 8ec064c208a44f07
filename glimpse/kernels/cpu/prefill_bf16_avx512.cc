// Compiled with AVX-512 flags. It must not use inline functions of other headers: the linker could pick this file's
// copy of one for code that runs on processors without AVX-512.
#include <immintrin.h>

#include "glimpse/kernels/cpu/prefill_bf16.h"

namespace glimpse::kernels {
namespace {

constexpr int kRows = 8;  ///< with 3 vectors of lanes 24 sums, 3 operands and a broadcast: 28 of 32 registers

inline __m512 multiply_pairs(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

inline __m512i broadcast_pair(const void* pair) {
  return _mm512_set1_epi32(_mm_cvtsi128_si32(_mm_loadu_si32(pair)));
}

template <int kVectors>
void scores_of(const Bf16Shape& shape, const std::uint16_t* keys, const std::uint32_t* queries, float* scores) {
  constexpr int kLanes = kBf16Vector * kVectors;
  for (int key = 0; key < shape.keys; key += kRows) {
    __m512 sums[kRows][kVectors];
    for (auto& row : sums) {
      for (auto& sum : row) sum = _mm512_setzero_ps();
    }
    const std::uint16_t* rows = keys + key * shape.dim;
    for (int t = 0; t < shape.dim / 2; ++t) {
      __m512i query[kVectors];
      for (int c = 0; c < kVectors; ++c) query[c] = _mm512_loadu_si512(queries + t * kLanes + 16 * c);
      for (int r = 0; r < kRows; ++r) {
        const __m512i pair = broadcast_pair(rows + r * shape.dim + 2 * t);
        for (int c = 0; c < kVectors; ++c) sums[r][c] = multiply_pairs(sums[r][c], query[c], pair);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kVectors; ++c) _mm512_storeu_ps(scores + (key + r) * kLanes + 16 * c, sums[r][c]);
    }
  }
}

inline __m512i round_pair(const float* even, const float* odd) {
  const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(even)));
  const __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(odd)));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

template <int kVectors>
void values_of(const Bf16Shape& shape, const std::uint32_t* values, const float* weights, const float* fade,
               float* out) {
  constexpr int kLanes = kBf16Vector * kVectors;
  alignas(64) std::uint32_t pairs[kBf16Keys / 2 * kLanes];
  for (int t = 0; t < shape.keys / 2; ++t) {
    const float* even = weights + 2 * t * kLanes;
    for (int c = 0; c < kLanes; c += 16) {
      _mm512_store_si512(pairs + t * kLanes + c, round_pair(even + c, even + kLanes + c));
    }
  }
  for (int i = 0; i < shape.dim; i += kRows) {
    const std::uint32_t* column = values + i * (kBf16Keys / 2);
    __m512 sums[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kVectors; ++c) {
        sums[r][c] = _mm512_mul_ps(_mm512_loadu_ps(out + (i + r) * kLanes + 16 * c), _mm512_loadu_ps(fade + 16 * c));
      }
    }
    for (int t = 0; t < shape.keys / 2; ++t) {
      __m512i weight[kVectors];
      for (int c = 0; c < kVectors; ++c) weight[c] = _mm512_load_si512(pairs + t * kLanes + 16 * c);
      for (int r = 0; r < kRows; ++r) {
        const __m512i pair = broadcast_pair(column + t * 8 + r);
        for (int c = 0; c < kVectors; ++c) sums[r][c] = multiply_pairs(sums[r][c], weight[c], pair);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kVectors; ++c) _mm512_storeu_ps(out + (i + r) * kLanes + 16 * c, sums[r][c]);
    }
  }
}

void scores_avx512(const Bf16Shape& shape, const std::uint16_t* keys, const std::uint32_t* queries, float* scores) {
  const auto of = shape.lanes == kBf16Lanes ? scores_of<3> : shape.lanes == kBf16Vector ? scores_of<1> : scores_of<2>;
  of(shape, keys, queries, scores);
}

void values_avx512(const Bf16Shape& shape, const std::uint32_t* values, const float* weights, const float* fade,
                   float* out) {
  const auto of = shape.lanes == kBf16Lanes ? values_of<3> : shape.lanes == kBf16Vector ? values_of<1> : values_of<2>;
  of(shape, values, weights, fade, out);
}

}  // namespace

extern const Bf16Products kAvx512Bf16Products;
const Bf16Products kAvx512Bf16Products{scores_avx512, values_avx512};

}  // namespace glimpse::kernels
