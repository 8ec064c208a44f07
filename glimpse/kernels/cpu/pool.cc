#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "glimpse/kernels/cpu/pool.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/kernels/attention.h"
#include "glimpse/kernels/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {
namespace {

template <bool kMax, class D, class Load>
HWY_INLINE hn::Vec<D> pool_vector(D d, const float* scores, std::size_t stride, const float* lse, int group,
                                  const Load& load) {
  auto pooled = kMax ? hn::Set(d, kMinusInfinity) : hn::Zero(d);
  for (int j = 0; j < group; ++j) {
    auto value = load(scores + static_cast<std::size_t>(j) * stride);
    // Nothing attended (lse -inf): every score is -inf, and -inf less -inf would be NaN.
    if (lse != nullptr) {
      value = lse[j] == kMinusInfinity ? hn::Zero(d) : exp(d, hn::Sub(value, hn::Set(d, lse[j])));
    }
    pooled = kMax ? hn::Max(pooled, value) : hn::Add(pooled, value);
  }
  return kMax ? pooled : hn::Mul(pooled, hn::Set(d, 1.0F / static_cast<float>(group)));
}

template <bool kMax>
HWY_INLINE void pool_all(const float* scores, std::size_t stride, const float* lse, int group,
                         std::span<float> pooled) {
  const std::size_t count = pooled.size();
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto load = [&](const float* from) HWY_ATTR { return hn::LoadU(d, from); };
    hn::StoreU(pool_vector<kMax>(d, scores + i, stride, lse, group, load), d, pooled.data() + i);
  }
  if (i < count) {
    const auto load = [&](const float* from) HWY_ATTR { return load_tail(d, from, count - i, kMinusInfinity); };
    store_tail(d, pool_vector<kMax>(d, scores + i, stride, lse, group, load), pooled.data() + i, count - i);
  }
}

void pool_mean_target(const float* scores, std::size_t stride, const float* lse, int group, std::span<float> pooled) {
  pool_all<false>(scores, stride, lse, group, pooled);
}

void pool_max_target(const float* scores, std::size_t stride, const float* lse, int group, std::span<float> pooled) {
  pool_all<true>(scores, stride, lse, group, pooled);
}

std::size_t count_above_target(const float* values, std::size_t count, float threshold) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto limit = hn::Set(d, threshold);
  std::size_t above = 0;
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) above += hn::CountTrue(d, hn::Ge(hn::LoadU(d, values + i), limit));
  for (; i < count; ++i) above += values[i] >= threshold;
  return above;
}

void block_max_target(const float* scores, std::size_t count, std::size_t block, float* out) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t end = std::min(count, begin + block);
    auto largest = hn::Set(d, kMinusInfinity);
    std::size_t i = begin;
    for (; i + lanes <= end; i += lanes) largest = hn::Max(largest, hn::LoadU(d, scores + i));
    float top = hn::GetLane(hn::MaxOfLanes(d, largest));
    for (; i < end; ++i) top = std::max(top, scores[i]);
    *out++ = top;
  }
}

}  // namespace
}  // namespace glimpse::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace glimpse::kernels {
HWY_EXPORT(pool_mean_target);
HWY_EXPORT(pool_max_target);
HWY_EXPORT(count_above_target);
HWY_EXPORT(block_max_target);

void pool_mean_probability(const float* scores, std::size_t stride, const float* lse, int group,
                           std::span<float> pooled) {
  HWY_DYNAMIC_DISPATCH(pool_mean_target)(scores, stride, lse, group, pooled);
}

void pool_mean_score(const float* scores, std::size_t stride, int group, std::span<float> pooled) {
  HWY_DYNAMIC_DISPATCH(pool_mean_target)(scores, stride, nullptr, group, pooled);
}

void pool_max_score(const float* scores, std::size_t stride, int group, std::span<float> pooled) {
  HWY_DYNAMIC_DISPATCH(pool_max_target)(scores, stride, nullptr, group, pooled);
}

void pool_max_probability(const float* scores, std::size_t stride, const float* lse, int group,
                          std::span<float> pooled) {
  HWY_DYNAMIC_DISPATCH(pool_max_target)(scores, stride, lse, group, pooled);
}

std::size_t count_above(std::span<const float> probabilities, float threshold) {
  return HWY_DYNAMIC_DISPATCH(count_above_target)(probabilities.data(), probabilities.size(), threshold);
}

void block_max(std::span<const float> scores, int block, std::span<float> out) {
  check(block > 0, "block_max takes blocks of at least one token");
  const auto size = static_cast<std::size_t>(block);
  check(out.size() >= (scores.size() + size - 1) / size, "block_max has no room for its blocks");
  HWY_DYNAMIC_DISPATCH(block_max_target)(scores.data(), scores.size(), size, out.data());
}

}  // namespace glimpse::kernels
#endif
