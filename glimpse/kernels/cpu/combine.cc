#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "glimpse/kernels/cpu/combine.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "glimpse/base/error.h"
#include "glimpse/kernels/attention.h"
#include "glimpse/kernels/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {
namespace {

float exp_of(float x) {
  const hn::ScalableTag<float> d;
  return hn::GetLane(exp(d, hn::Set(d, x)));
}

void combine_target(const float* partials, int count, int group, int dim, float* out) {
  const hn::CappedTag<float, 8> d;
  const auto width = static_cast<std::size_t>(dim);
  const std::size_t stride = partial_floats(group, dim);
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t j = 0; j < static_cast<std::size_t>(group); ++j) {
    const float* lse = partials + static_cast<std::size_t>(group) * width + j;
    float* row = out + j * width;
    float largest = kMinusInfinity;
    for (int p = 0; p < count; ++p) largest = std::max(largest, lse[static_cast<std::size_t>(p) * stride]);
    std::fill(row, row + width, 0.0F);
    float total = 0;
    for (int p = 0; p < count; ++p) {
      const float* partial = partials + static_cast<std::size_t>(p) * stride;
      const float own = lse[static_cast<std::size_t>(p) * stride];
      if (own == kMinusInfinity) continue;
      const float weight = exp_of(own - largest);
      total += weight;
      const auto w = hn::Set(d, weight);
      for (std::size_t i = 0; i < width; i += lanes) {
        hn::StoreU(hn::MulAdd(w, hn::LoadU(d, partial + j * width + i), hn::LoadU(d, row + i)), d, row + i);
      }
    }
    if (total == 0 || total == 1) continue;  // one partial comes through bit for bit
    const auto t = hn::Set(d, total);
    for (std::size_t i = 0; i < width; i += lanes) hn::StoreU(hn::Div(hn::LoadU(d, row + i), t), d, row + i);
  }
}

float log_sum_exp_target(const float* scores, std::size_t count) {
  if (count == 0) return kMinusInfinity;
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t whole = count / lanes * lanes;
  const auto tail = load_tail(d, scores + whole, count - whole, kMinusInfinity);
  auto largest = tail;
  for (std::size_t i = 0; i < whole; i += lanes) largest = hn::Max(largest, hn::LoadU(d, scores + i));
  const float top = hn::GetLane(hn::MaxOfLanes(d, largest));
  if (top == kMinusInfinity) return top;
  const auto reference = hn::Set(d, top);
  auto even = hn::Zero(d);
  auto odd = hn::Zero(d);
  std::size_t i = 0;
  for (; i + lanes < whole; i += 2 * lanes) {
    even = hn::Add(even, exp(d, hn::Sub(hn::LoadU(d, scores + i), reference)));
    odd = hn::Add(odd, exp(d, hn::Sub(hn::LoadU(d, scores + i + lanes), reference)));
  }
  if (i < whole) even = hn::Add(even, exp(d, hn::Sub(hn::LoadU(d, scores + i), reference)));
  odd = hn::Add(odd, exp(d, hn::Sub(tail, reference)));
  return top + std::log(hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd))));
}

}  // namespace
}  // namespace glimpse::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace glimpse::kernels {
HWY_EXPORT(combine_target);
HWY_EXPORT(log_sum_exp_target);

void combine(const float* partials, int count, int group, int dim, float* out) {
  check(count >= 0 && group >= 1 && dim > 0 && dim % 8 == 0, "combine takes dimensions in eights");
  HWY_DYNAMIC_DISPATCH(combine_target)(partials, count, group, dim, out);
}

float log_sum_exp(std::span<const float> scores) {
  if (scores.empty()) return -std::numeric_limits<float>::infinity();
  return HWY_DYNAMIC_DISPATCH(log_sum_exp_target)(scores.data(), scores.size());
}

}  // namespace glimpse::kernels
#endif
