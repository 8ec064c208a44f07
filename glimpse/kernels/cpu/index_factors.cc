#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "glimpse/kernels/cpu/index_factors.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include <algorithm>
#include <cstring>

#include "glimpse/base/error.h"
#include "glimpse/kernels/cpu/vec-inl.h"
#include "glimpse/kernels/index.h"

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {
namespace {

/// Rows that share each load of the basis, and vectors of a row: with the basis as many sums as registers hold.
constexpr int kWideRows = HWY_TARGET == HWY_AVX3 ? 6 : 4;
constexpr int kWideVectors = HWY_TARGET == HWY_AVX3 ? 4 : 2;
/// Columns of U that are floats at a time.
constexpr int kColumns = 256;

/// `count` values from `first` on of a row of U as floats; writes whole vectors.
HWY_INLINE void read_columns(KvType type, const std::byte* row, std::size_t first, std::size_t count,
                             float* HWY_RESTRICT to) {
  with_kv_type(type, [&](auto kind) HWY_ATTR {
    constexpr KvType kType = decltype(kind)::value;
    constexpr std::size_t kBytes = VectorPair<kType>::kBytes;
    const RowTag d;
    std::size_t i = 0;
    for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) hn::StoreU(load_values<kType>(d, row, first + i), d, to + i);
    if (i == count) return;
    std::byte rest[hn::MaxLanes(d) * sizeof(float)] = {};
    std::memcpy(rest, row + (first + i) * kBytes, (count - i) * kBytes);
    hn::StoreU(load_values<kType>(d, rest, 0), d, to + i);
  });
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
    const float* const row = basis + static_cast<std::size_t>(k) * dim;
    for (std::size_t c = 0; c < kVectors; ++c) b[c] = hn::LoadU(d, row + c * lanes);
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
    for (std::size_t r = 0; r < kRows; ++r) {
      const std::byte* row = item.coefficients + static_cast<std::size_t>(item.positions[first + r]) * item.row_bytes;
      read_columns(item.type, row, static_cast<std::size_t>(from), static_cast<std::size_t>(count), u + r * kColumns);
    }
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
