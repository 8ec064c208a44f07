// Vector pieces that the kernels share: exp, reductions of four rows, loads that widen a row of the cache. Included
// once for each instruction set (hence the toggled guard). Nothing is kept, any thread.
#if defined(GLIMPSE_KERNELS_CPU_VEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GLIMPSE_KERNELS_CPU_VEC_INL_H_
#undef GLIMPSE_KERNELS_CPU_VEC_INL_H_
#else
#define GLIMPSE_KERNELS_CPU_VEC_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "glimpse/base/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Into L2, not L1: gathered rows reach three times the bandwidth that way.
HWY_INLINE void prefetch_l2(const void* address) {
  __builtin_prefetch(address, 0, 2);
}

/// The same address, of which the compiler knows nothing: it then loads anew what it would have kept in a register,
/// and so has none left and moves sums to memory (12 cycles for a row instead of 6, GCC 12).
HWY_INLINE const std::byte* forget(const std::byte* address) {
  asm volatile("" : "+r"(address));
  return address;
}

/// 2^n from `shifted` = n + 1.5 * 2^23, n in [-126, 127].
template <class D, class V = hn::Vec<D>>
HWY_INLINE V power_of_two(D d, V shifted) {
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, hn::Add(hn::ShiftLeft<23>(hn::BitCast(di, shifted)), hn::Set(di, 0x3f800000)));
}

/// e^x for x <= 88, relative error under 2e-7; 0 below -87.3 (-inf included), exactly 1 at 0, NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp(D d, V x) {
  const V magic = hn::Set(d, 12582912.0F);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504F), magic);
  const V n = hn::Sub(shifted, magic);
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693145752F), x);
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860677e-6F), r);
  V p = hn::Set(d, 1.381446490995586e-3F);
  p = hn::MulAdd(p, r, hn::Set(d, 8.368780836462975e-3F));
  p = hn::MulAdd(p, r, hn::Set(d, 4.166839271783829e-2F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.666651964187622e-1F));
  p = hn::MulAdd(p, r, hn::Set(d, 4.999999403953552e-1F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.3F)), hn::Mul(p, power_of_two(d, shifted)));
}

/// 2^x for x <= 127, relative error under 2e-7; 0 below -126, exactly 1 at 0, NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2(D d, V x) {
  const V magic = hn::Set(d, 12582912.0F);
  const V shifted = hn::Add(x, magic);
  const V r = hn::Sub(x, hn::Sub(shifted, magic));
  V p = hn::Set(d, 1.3264587614685297e-3F);
  p = hn::MulAdd(p, r, hn::Set(d, 9.671619161963463e-3F));
  p = hn::MulAdd(p, r, hn::Set(d, 5.55073507130146e-2F));
  p = hn::MulAdd(p, r, hn::Set(d, 2.4022240936756134e-1F));
  p = hn::MulAdd(p, r, hn::Set(d, 6.931470036506653e-1F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0F)), hn::Mul(p, power_of_two(d, shifted)));
}

using D4 = hn::CappedTag<float, 4>;

#if HWY_TARGET != HWY_SCALAR
/// Adds the fours of lanes of `v`.
template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::Vec<D4> fold_fours(D d, V v) {
  if constexpr (hn::MaxLanes(d) > 4) {
    const hn::Half<D> half;
    return fold_fours(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    return v;
  }
}
#endif

/// The sums of four vectors times `factor`, always added in the same order.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void sum_four(D d, V a, V b, V c, V e, float factor, float* HWY_RESTRICT sums) {
#if HWY_TARGET == HWY_SCALAR
  hn::StoreU(hn::Mul(a, hn::Set(d, factor)), d, sums);
  hn::StoreU(hn::Mul(b, hn::Set(d, factor)), d, sums + 1);
  hn::StoreU(hn::Mul(c, hn::Set(d, factor)), d, sums + 2);
  hn::StoreU(hn::Mul(e, hn::Set(d, factor)), d, sums + 3);
#else
  const V ac = hn::Add(hn::InterleaveLower(d, a, c), hn::InterleaveUpper(d, a, c));
  const V be = hn::Add(hn::InterleaveLower(d, b, e), hn::InterleaveUpper(d, b, e));
  const V all = hn::Add(hn::InterleaveLower(d, ac, be), hn::InterleaveUpper(d, ac, be));
  hn::StoreU(hn::Mul(fold_fours(d, all), hn::Set(D4(), factor)), D4(), sums);
#endif
}

/// 0xffff0000 in each lane.
alignas(64) constexpr std::byte kUpperHalves[64] = {
    {}, {}, std::byte{255}, std::byte{255}, {}, {}, std::byte{255}, std::byte{255},
    {}, {}, std::byte{255}, std::byte{255}, {}, {}, std::byte{255}, std::byte{255},
    {}, {}, std::byte{255}, std::byte{255}, {}, {}, std::byte{255}, std::byte{255},
    {}, {}, std::byte{255}, std::byte{255}, {}, {}, std::byte{255}, std::byte{255},
    {}, {}, std::byte{255}, std::byte{255}, {}, {}, std::byte{255}, std::byte{255},
    {}, {}, std::byte{255}, std::byte{255}, {}, {}, std::byte{255}, std::byte{255},
    {}, {}, std::byte{255}, std::byte{255}, {}, {}, std::byte{255}, std::byte{255},
    {}, {}, std::byte{255}, std::byte{255}, {}, {}, std::byte{255}, std::byte{255}};

/// A pair of a row of the cache is 2 * Lanes(d) values, read as two float vectors. With kEvenOdd the first holds the
/// even and the second the odd values: two instructions widen 16 bits to 32 that way, four in row order.
template <KvType kType>
struct VectorPair;

template <>
struct VectorPair<KvType::f32> {
  static constexpr bool kEvenOdd = false;
  static constexpr std::size_t kBytes = 4;
  template <class D>
  static HWY_INLINE hn::Vec<D> first(D d, const std::byte* row, std::size_t pair) {
    return hn::LoadU(d, reinterpret_cast<const float*>(row) + 2 * pair * hn::Lanes(d));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> second(D d, const std::byte* row, std::size_t pair) {
    return hn::LoadU(d, reinterpret_cast<const float*>(row) + (2 * pair + 1) * hn::Lanes(d));
  }
};

template <>
struct VectorPair<KvType::bf16> {
  static constexpr bool kEvenOdd = true;
  static constexpr std::size_t kBytes = 2;
  template <class D>
  static HWY_INLINE hn::Vec<D> first(D d, const std::byte* row, std::size_t pair) {
    return hn::BitCast(d, hn::ShiftLeft<16>(pairs(d, row, pair)));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> second(D d, const std::byte* row, std::size_t pair) {
    const hn::RebindToUnsigned<D> du;
    return hn::BitCast(d, hn::And(pairs(d, row, pair), hn::Set(du, 0xffff0000U)));
  }
  /// The same with the mask from memory, for loops in which it would be one register too many.
  template <class D>
  static HWY_INLINE hn::Vec<D> second_unmasked(D d, const std::byte* row, std::size_t pair) {
    const hn::RebindToUnsigned<D> du;
    const auto mask = hn::Load(du, reinterpret_cast<const std::uint32_t*>(forget(kUpperHalves)));
    return hn::BitCast(d, hn::And(pairs(d, row, pair), mask));
  }

 private:
  template <class D>
  static HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> pairs(D d, const std::byte* row, std::size_t pair) {
    const hn::RebindToUnsigned<D> du;
    return hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(row) + pair * hn::Lanes(d));
  }
};

template <>
struct VectorPair<KvType::f16> {
  static constexpr bool kEvenOdd = false;
  static constexpr std::size_t kBytes = 2;
  template <class D>
  static HWY_INLINE hn::Vec<D> first(D d, const std::byte* row, std::size_t pair) {
    return half(d, row, 2 * pair);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> second(D d, const std::byte* row, std::size_t pair) {
    return half(d, row, 2 * pair + 1);
  }

 private:
  template <class D>
  static HWY_INLINE hn::Vec<D> half(D d, const std::byte* row, std::size_t vector) {
    const hn::Rebind<hwy::float16_t, D> dh;
    return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(row) + vector * hn::Lanes(d)));
  }
};

template <>
struct VectorPair<KvType::q8_0> {
  static constexpr bool kEvenOdd = false;
  static constexpr std::size_t kBytes = 1;
  template <class D>
  static HWY_INLINE hn::Vec<D> first(D d, const std::byte* row, std::size_t pair) {
    return bytes(d, row, 2 * pair);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> second(D d, const std::byte* row, std::size_t pair) {
    return bytes(d, row, 2 * pair + 1);
  }

 private:
  template <class D>
  static HWY_INLINE hn::Vec<D> bytes(D d, const std::byte* row, std::size_t vector) {
    const hn::RebindToSigned<D> di;
    const hn::Rebind<std::int8_t, D> d8;
    const auto* from = reinterpret_cast<const std::int8_t*>(row) + vector * hn::Lanes(d);
    return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, from)));
  }
};

/// The second vector of a pair where registers are short (12 sums, 3 weights and one vector of a row are all 16 of
/// AVX2): no mask, and nothing kept from the first.
template <KvType kType, class D>
HWY_INLINE hn::Vec<D> second_vector(D d, const std::byte* row, std::size_t pair) {
  if constexpr (kType == KvType::bf16) {
    return VectorPair<kType>::second_unmasked(d, forget(row), pair);
  } else {
    return VectorPair<kType>::second(d, row, pair);
  }
}

/// Calls `run` with the KV type as a constant.
template <class Run>
HWY_INLINE void with_kv_type(KvType type, Run&& run) {
  switch (type) {
    case KvType::f32:
      run(std::integral_constant<KvType, KvType::f32>());
      break;
    case KvType::f16:
      run(std::integral_constant<KvType, KvType::f16>());
      break;
    case KvType::bf16:
      run(std::integral_constant<KvType, KvType::bf16>());
      break;
    case KvType::q8_0:
      run(std::integral_constant<KvType, KvType::q8_0>());
      break;
  }
}

/// Dimensions are multiples of 8: whole vectors for every instruction set.
using RowTag = hn::CappedTag<float, 8>;

/// Values [i, i + Lanes(d)) of a row as floats, in row order; of q8_0 before their scale.
template <KvType kType, class D>
HWY_INLINE hn::Vec<D> load_values(D d, const std::byte* row, std::size_t i) {
  const std::byte* at = row + i * VectorPair<kType>::kBytes;
  if constexpr (kType == KvType::f32) {
    return hn::LoadU(d, reinterpret_cast<const float*>(at));
  } else if constexpr (kType == KvType::f16) {
    const hn::Rebind<hwy::float16_t, D> dh;
    return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(at)));
  } else if constexpr (kType == KvType::bf16) {
    const hn::Rebind<std::uint16_t, D> dh;
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::LoadU(dh, reinterpret_cast<const std::uint16_t*>(at));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
  } else {
    const hn::Rebind<std::int8_t, D> d8;
    const hn::RebindToSigned<D> di;
    return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(at))));
  }
}

/// Loads n < Lanes(d) values, the other lanes `fill`: tails take the same arithmetic as whole vectors, so that
/// results don't depend on where a range is cut.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V load_tail(D d, const float* from, std::size_t n, float fill) {
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(hn::Set(d, fill), d, lanes);
  std::memcpy(lanes, from, n * sizeof(float));
  return hn::Load(d, lanes);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE void store_tail(D d, V v, float* to, std::size_t n) {
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(v, d, lanes);
  std::memcpy(to, lanes, n * sizeof(float));
}

}  // namespace glimpse::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
