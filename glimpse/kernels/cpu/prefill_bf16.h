// The two products of a prefill tile in bf16 dot products (vdpbf16ps: two bf16 products added into one f32), for
// caches of bf16 rows. A table of functions with one source file per instruction set; they neither allocate nor keep
// anything. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace glimpse::kernels {

/// Query vectors that lie across one vector register.
inline constexpr int kBf16Vector = 16;
/// Query vectors (lanes) that one panel holds, at most: it has one, two or three registers of them.
inline constexpr int kBf16Lanes = 3 * kBf16Vector;
/// Keys that one tile holds, at most.
inline constexpr int kBf16Keys = 64;

struct Bf16Shape {
  int dim = 0;
  int keys = 0;   ///< a multiple of 8, rows past the tile's end zero
  int lanes = 0;  ///< of the panel: one, two or three times kBf16Vector
};

struct Bf16Products {
  /// scores[key, lane] = sum_i keys[key, i] * queries[i, lane]. keys: [key, d] bf16; queries: [d / 2, lane], pairs of
  /// bf16 with the even value in the low half.
  void (*scores)(const Bf16Shape& shape, const std::uint16_t* keys, const std::uint32_t* queries, float* scores);

  /// out[i, lane] = out[i, lane] * fade[lane] + sum_key values[key, i] * weights[key, lane]. values: pairs of keys (the
  /// even key low) as [d / 8, kBf16Keys / 2, 8]; weights: [key, lane], rounded to bf16 here; out: [d, lane].
  void (*values)(const Bf16Shape& shape, const std::uint32_t* values, const float* weights, const float* fade,
                 float* out);
};

/// The table for this processor, or null where it has no such instruction or f32 products are faster.
const Bf16Products* bf16_products();

}  // namespace glimpse::kernels
