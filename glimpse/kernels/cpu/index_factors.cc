#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "glimpse/kernels/cpu/index_factors.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include <algorithm>
#include <cstring>

#include "glimpse/base/dtype.h"
#include "glimpse/base/error.h"
#include "glimpse/kernels/cpu/vec-inl.h"
#include "glimpse/kernels/index.h"

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {
namespace {

constexpr int kWideRows = HWY_TARGET == HWY_AVX3 ? 6 : 4;  ///< rows that share each load of the basis
constexpr int kWideVectors =
    HWY_TARGET == HWY_AVX3 ? 4 : 2;  ///< vectors of a row; with the rows the sums that registers hold
constexpr int kColumns = 256;        ///< columns of U that are floats at a time

/// Columns [first, first + count) of one row of U as floats.
HWY_INLINE void widen(const FactorItem& item, std::int32_t position, int first, int count, float* HWY_RESTRICT to) {
  const std::byte* row = item.coefficients + static_cast<std::size_t>(position) * item.row_bytes;
  if (item.type == KvType::f32) {
    std::memcpy(to, row + static_cast<std::size_t>(first) * sizeof(float),
                static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  std::uint16_t values[kColumns];
  std::memcpy(values, row + static_cast<std::size_t>(first) * 2, static_cast<std::size_t>(count) * 2);
  if (item.type == KvType::bf16) {
    for (int k = 0; k < count; ++k) to[k] = float_from_bf16(values[k]);
  } else {
    for (int k = 0; k < count; ++k) to[k] = float_from_f16(values[k]);
  }
}

/// A few rows and vectors of the product, added to what `out` holds: each sum is one chain, in the order of k.
template <int kRows, int kVectors, class D>
HWY_INLINE void add_tile(D d, const FactorItem& item, const float* HWY_RESTRICT u, const float* HWY_RESTRICT basis,
                         int count, float* HWY_RESTRICT out) {
  using V = hn::Vec<D>;
  const std::size_t lanes = hn::Lanes(d);
  const auto dim = static_cast<std::size_t>(item.dim);
  V sums[kRows][kVectors];
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t c = 0; c < kVectors; ++c) sums[r][c] = hn::LoadU(d, out + r * dim + c * lanes);
  }
  for (int k = 0; k < count; ++k) {
    V b[kVectors];
    for (std::size_t c = 0; c < kVectors; ++c)
      b[c] = hn::LoadU(d, basis + static_cast<std::size_t>(k) * dim + c * lanes);
    for (int r = 0; r < kRows; ++r) {
      const V factor = hn::Set(d, u[r * kColumns + k]);
      for (int c = 0; c < kVectors; ++c) sums[r][c] = hn::MulAdd(factor, b[c], sums[r][c]);
    }
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t c = 0; c < kVectors; ++c) hn::StoreU(sums[r][c], d, out + r * dim + c * lanes);
  }
}

template <int kRows, class D>
HWY_INLINE void add_rows(D d, const FactorItem& item, std::size_t first) {
  HWY_ALIGN float u[kRows * kColumns];
  const auto dim = static_cast<std::size_t>(item.dim);
  const std::size_t wide = kWideVectors * hn::Lanes(d);
  float* const out = item.out + first * dim;
  std::fill_n(out, kRows * dim, 0.0F);
  for (int from = 0; from < item.rank; from += kColumns) {
    const int count = std::min(kColumns, item.rank - from);
    for (std::size_t r = 0; r < kRows; ++r) widen(item, item.positions[first + r], from, count, u + r * kColumns);
    const float* const basis = item.basis + static_cast<std::size_t>(from) * dim;
    std::size_t i = 0;
    for (; i + wide <= dim; i += wide) add_tile<kRows, kWideVectors>(d, item, u, basis + i, count, out + i);
    for (; i < dim; i += hn::Lanes(d)) add_tile<kRows, 1>(d, item, u, basis + i, count, out + i);
  }
}

void multiply_factors_target(const FactorItem& item) {
  const auto run = [&](auto d) HWY_ATTR {
    std::size_t n = 0;
    for (; n + kWideRows <= item.positions.size(); n += kWideRows) add_rows<kWideRows>(d, item, n);
    for (; n < item.positions.size(); ++n) add_rows<1>(d, item, n);
  };
  const hn::ScalableTag<float> widest;
  if (static_cast<std::size_t>(item.dim) % hn::Lanes(widest) == 0) {
    run(widest);
  } else {
    run(hn::CappedTag<float, 8>());
  }
}

}  // namespace
}  // namespace glimpse::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace glimpse::kernels {
HWY_EXPORT(multiply_factors_target);

void multiply_factors(const FactorItem& item) {
  check(item.type != KvType::q8_0, "factors are f32, f16 or bf16");
  check(item.dim > 0 && item.dim % 8 == 0, "rows that are made of factors have a multiple of 8 values");
  if (!item.positions.empty()) HWY_DYNAMIC_DISPATCH(multiply_factors_target)(item);
}

}  // namespace glimpse::kernels
#endif
