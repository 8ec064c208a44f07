#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "glimpse/kernels/cpu/target.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "glimpse/kernels/attention.h"
#include "glimpse/kernels/cpu/prefill_bf16.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {
namespace {

const char* target_name() {
#if HWY_TARGET == HWY_AVX3
  return bf16_products() == nullptr ? "AVX-512" : "AVX-512 + bf16";
#elif HWY_TARGET == HWY_AVX2
  return "AVX2";
#elif HWY_TARGET == HWY_SSE4
  return "SSE4";
#elif HWY_TARGET == HWY_SCALAR
  return "scalar";
#else
  return "portable";
#endif
}

int target_floats() {
  return static_cast<int>(hwy::HWY_NAMESPACE::Lanes(hwy::HWY_NAMESPACE::ScalableTag<float>()));
}

}  // namespace
}  // namespace glimpse::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace glimpse::kernels {
HWY_EXPORT(target_name);
HWY_EXPORT(target_floats);

const char* instruction_set() {
  return HWY_DYNAMIC_DISPATCH(target_name)();
}

int vector_floats() {
  return HWY_DYNAMIC_DISPATCH(target_floats)();
}

}  // namespace glimpse::kernels
#endif
