// How the scores of several query heads become one value, four slots at a time.
#pragma once

#include <cstdint>

#include "glimpse/kernels/cuda/mma.cuh"
#include "glimpse/kernels/ops.h"

namespace glimpse::kernels::cuda {
namespace selection {

/// e^x to 2^-22 or so, 0 below 2^-126: the product with log2(e) in two parts.
__device__ inline float exp_of(float x) {
  x = fmaxf(x, -200.0F);
  constexpr float kHigh = 1.4426950408889634F, kLow = 1.925963033500e-8F;
  const float high = x * kHigh;
  const float low = fmaf(x, kHigh, -high) + x * kLow;
  return exp2_of(high) * fmaf(low, kLogOf2, 1.0F);
}

/// The scores that a choice pools.
struct Pooled {
  const float* scores = nullptr;  ///< of the first query head that counts, and its log-sum-exp
  const float* lse = nullptr;
  std::size_t stride = 0;
  int group = 1, heads = 1;
  int queries = 1;  ///< of a KV head
  int scored = 0;   ///< scores of a query head: of slots, or of units
  Pooling pooling = Pooling::mean_probability;
  Across across = Across::as_group;
  const float* mean_lse = nullptr;  ///< [heads] of the mean scores, under Pooling::probability_of_mean

  __device__ float share() const { return 1.0F / static_cast<float>(queries * heads); }
  /// KV heads are pooled otherwise than their groups are.
  __device__ bool apart() const { return across != Across::as_group || pooling == Pooling::probability_of_mean; }
  /// A query head that saw nothing gives nothing.
  __device__ static float base_of(float lse) { return lse == -INFINITY ? INFINITY : lse; }
};

/// The pooled values of four slots (or units, where these have scores) from `slot`, which there are, at an aligned
/// place.
template <bool kProbability, bool kLargest>
__device__ inline void pool_four(const Pooled& of, int slot, float (&values)[4]) {
  for (float& value : values) value = kLargest ? -INFINITY : 0.0F;
#pragma unroll 1
  for (int head = 0; head < of.heads; ++head) {
    const float* from = of.scores + static_cast<std::size_t>(head) * of.group * of.stride + slot;
    const float* const lse = of.lse + head * of.group;
#pragma unroll 4
    for (int query = 0; query < of.queries; ++query, from += of.stride) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(from));
      const float x[4] = {four.x, four.y, four.z, four.w};
      float base = 0;
      if (kProbability) base = Pooled::base_of(lse[query]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float value = kProbability ? exp_of(x[e] - base) : x[e];
        values[e] = kLargest ? fmaxf(values[e], value) : values[e] + value;
      }
    }
  }
  if constexpr (!kLargest) {
    const float share = of.share();
    for (float& value : values) value *= share;
  }
}
/// The same of any four where KV heads are pooled apart; behind the end: -inf. Out of line, as the next: few take this
/// way, and code takes long to come.
__device__ __noinline__ float4 pool_apart_four(const Pooled of, int slot) {
  const bool of_mean = of.pooling == Pooling::probability_of_mean;
  const bool probability = of.pooling == Pooling::mean_probability || of.pooling == Pooling::max_probability;
  const bool largest = of.pooling == Pooling::max_probability || of.pooling == Pooling::max_score;
  const bool across = of.across == Across::max || (of.across == Across::as_group && largest);
  float values[4];
  for (float& value : values) value = across ? -INFINITY : 0.0F;
#pragma unroll 1
  for (int head = 0; head < of.heads; ++head) {
    const float* from = of.scores + static_cast<std::size_t>(head) * of.group * of.stride + slot;
    const float* const lse = of.lse + head * of.group;
    float own[4];
    for (float& value : own) value = largest ? -INFINITY : 0.0F;
#pragma unroll 1
    for (int query = 0; query < of.queries; ++query, from += of.stride) {
      float base = 0;
      if (probability) base = Pooled::base_of(lse[query]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float x = slot + e < of.scored ? from[e] : -INFINITY;
        const float value = probability ? exp_of(x - base) : x;
        own[e] = largest ? fmaxf(own[e], value) : own[e] + value;
      }
    }
    float base = 0;
    if (of_mean) base = Pooled::base_of(of.mean_lse[head]);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (!largest) own[e] *= 1.0F / static_cast<float>(of.queries);
      if (of_mean) own[e] = exp_of(own[e] - base);
      values[e] = across ? fmaxf(values[e], own[e]) : values[e] + own[e];
    }
  }
  const float share = across ? 1.0F : 1.0F / static_cast<float>(of.heads);
#pragma unroll
  for (int e = 0; e < 4; ++e) values[e] = slot + e < of.scored ? values[e] * share : -INFINITY;
  return make_float4(values[0], values[1], values[2], values[3]);
}
__device__ __noinline__ float4 pool_any_four(const Pooled of, int slot) {
  if (of.apart()) return pool_apart_four(of, slot);
  const bool probability = of.pooling == Pooling::mean_probability || of.pooling == Pooling::max_probability;
  const bool largest = of.pooling == Pooling::max_probability || of.pooling == Pooling::max_score;
  float values[4];
  for (float& value : values) value = largest ? -INFINITY : 0.0F;
#pragma unroll 1
  for (int head = 0; head < of.heads; ++head) {
    const float* from = of.scores + static_cast<std::size_t>(head) * of.group * of.stride + slot;
    const float* const lse = of.lse + head * of.group;
#pragma unroll 1
    for (int query = 0; query < of.queries; ++query, from += of.stride) {
      float base = 0;
      if (probability) base = Pooled::base_of(lse[query]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float x = slot + e < of.scored ? from[e] : -INFINITY;
        const float value = probability ? exp_of(x - base) : x;
        values[e] = largest ? fmaxf(values[e], value) : values[e] + value;
      }
    }
  }
  const float share = largest ? 1.0F : of.share();
#pragma unroll
  for (int e = 0; e < 4; ++e) values[e] = slot + e < of.scored ? values[e] * share : -INFINITY;
  return make_float4(values[0], values[1], values[2], values[3]);
}

}  // namespace selection
}  // namespace glimpse::kernels::cuda
