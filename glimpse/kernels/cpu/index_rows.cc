#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "glimpse/kernels/cpu/index_rows.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "glimpse/base/error.h"
#include "glimpse/kernels/cpu/limits.h"
#include "glimpse/kernels/cpu/vec-inl.h"
#include "glimpse/kernels/index.h"

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {
namespace {

template <KvType kType>
void read_rows(const KvFormat& format, const HeadView& head, std::int32_t first, std::int32_t count,
               float* HWY_RESTRICT out) {
  const RowTag d;
  const auto dim = static_cast<std::size_t>(format.dim);
  for (std::int32_t slot = first; slot < first + count; ++slot, out += dim) {
    const std::byte* row = head.row_of(head.k_plane, slot, format);
    float scale = 1;
    if constexpr (kType == KvType::q8_0) {
      const std::byte* scales = head.page_of(head.k_plane, slot, format) + format.scale_offset();
      std::memcpy(&scale, scales + sizeof(float) * static_cast<std::size_t>(slot & (kPageTokens - 1)), sizeof scale);
    }
    for (std::size_t i = 0; i < dim; i += hn::Lanes(d)) {
      auto values = load_values<kType>(d, row, i);
      if constexpr (kType == KvType::q8_0) values = hn::Mul(values, hn::Set(d, scale));
      hn::StoreU(values, d, out + i);
    }
  }
}

void read_keys_target(const KvFormat& format, const HeadView& head, std::int32_t first, std::int32_t count,
                      float* out) {
  with_kv_type(format.type,
               [&](auto type) HWY_ATTR { read_rows<decltype(type)::value>(format, head, first, count, out); });
}

void bounds_target(const FloatRows& rows, float* HWY_RESTRICT least, float* HWY_RESTRICT most) {
  const RowTag d;
  const auto dim = static_cast<std::size_t>(rows.dim);
  for (std::size_t i = 0; i < dim; i += hn::Lanes(d)) {
    auto low = hn::LoadU(d, rows.data + i);
    auto high = low;
    for (std::size_t r = 1; r < static_cast<std::size_t>(rows.count); ++r) {
      const auto row = hn::LoadU(d, rows.data + r * dim + i);
      low = hn::Min(low, row);
      high = hn::Max(high, row);
    }
    hn::StoreU(low, d, least + i);
    hn::StoreU(high, d, most + i);
  }
}

void moments_target(const FloatRows& rows, float* HWY_RESTRICT mean, float* HWY_RESTRICT variance) {
  const RowTag d;
  const auto dim = static_cast<std::size_t>(rows.dim);
  const auto count = static_cast<std::size_t>(rows.count);
  const auto share = hn::Set(d, 1.0F / static_cast<float>(rows.count));
  for (std::size_t i = 0; i < dim; i += hn::Lanes(d)) {
    auto sum = hn::Zero(d);
    for (std::size_t r = 0; r < count; ++r) sum = hn::Add(sum, hn::LoadU(d, rows.data + r * dim + i));
    const auto middle = hn::Mul(sum, share);
    hn::StoreU(middle, d, mean + i);
    if (variance == nullptr) continue;
    auto squares = hn::Zero(d);
    for (std::size_t r = 0; r < count; ++r) {
      const auto off = hn::Sub(hn::LoadU(d, rows.data + r * dim + i), middle);
      squares = hn::MulAdd(off, off, squares);
    }
    hn::StoreU(hn::Mul(squares, share), d, variance + i);
  }
}

}  // namespace
}  // namespace glimpse::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace glimpse::kernels {
namespace {

void check_rows(const FloatRows& rows) {
  check(rows.count > 0 && rows.dim > 0 && rows.dim % 8 == 0, "rows of an index have dimensions in eights");
}

}  // namespace

HWY_EXPORT(read_keys_target);
HWY_EXPORT(bounds_target);
HWY_EXPORT(moments_target);

void read_keys(const KvFormat& format, const HeadView& head, std::int32_t first, std::int32_t count, float* out) {
  check_format(format);
  check(first >= 0 && count >= 0 && first + count <= head.slots, "read_keys reads slots that are in use");
  HWY_DYNAMIC_DISPATCH(read_keys_target)(format, head, first, count, out);
}

void row_bounds(const FloatRows& rows, float* least, float* most) {
  check_rows(rows);
  HWY_DYNAMIC_DISPATCH(bounds_target)(rows, least, most);
}

void row_moments(const FloatRows& rows, float* mean, float* variance) {
  check_rows(rows);
  HWY_DYNAMIC_DISPATCH(moments_target)(rows, mean, variance);
}

float row_radius(const FloatRows& rows, const float* centre) {
  check_rows(rows);
  const auto dim = static_cast<std::size_t>(rows.dim);
  double largest = 0;
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows.count); ++r) {
    double sums[4] = {};
    for (std::size_t i = 0; i < dim; i += 4) {
      for (std::size_t lane = 0; lane < 4; ++lane) {
        const double off = static_cast<double>(rows.data[r * dim + i + lane]) - centre[i + lane];
        sums[lane] += off * off;
      }
    }
    largest = std::max(largest, (sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
  // A sum of up to 256 doubles is off by less than 1e-13 of itself.
  const double radius = std::sqrt(largest) * (1 + 1e-13);
  const auto rounded = static_cast<float>(radius);
  return rounded < radius ? std::nextafter(rounded, std::numeric_limits<float>::infinity()) : rounded;
}

void normalise_row(float* row, int dim) {
  double squares = 0;
  for (int i = 0; i < dim; ++i) squares += static_cast<double>(row[i]) * row[i];
  if (!(squares > 0) || !std::isfinite(squares)) return;
  const double factor = 1 / std::sqrt(squares);
  for (int i = 0; i < dim; ++i) row[i] = static_cast<float>(row[i] * factor);
}

}  // namespace glimpse::kernels
#endif
