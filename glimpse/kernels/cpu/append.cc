#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "glimpse/kernels/cpu/append.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "glimpse/kernels/attention.h"
#include "glimpse/kernels/cpu/limits.h"
#include "glimpse/kernels/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {
namespace {

void store_f16(const float* HWY_RESTRICT row, std::size_t dim, std::byte* HWY_RESTRICT to) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::CappedTag<float, 8> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> dh;
  for (std::size_t i = 0; i < dim; i += 8) {
    hn::StoreU(hn::DemoteTo(dh, hn::LoadU(d, row + i)), dh, reinterpret_cast<hwy::float16_t*>(to) + i);
  }
#else
  // Without hardware conversion Highway's rounding differs; ours is what every back end must store.
  for (std::size_t i = 0; i < dim; ++i) {
    const std::uint16_t half = f16_from_float(row[i]);
    std::memcpy(to + 2 * i, &half, sizeof half);
  }
#endif
}

void store_bf16(const float* HWY_RESTRICT row, std::size_t dim, std::byte* HWY_RESTRICT to) {
  for (std::size_t i = 0; i < dim; ++i) {
    const std::uint16_t half = bf16_from_float(row[i]);
    std::memcpy(to + 2 * i, &half, sizeof half);
  }
}

/// Returns the scale. A row that is not finite gets a NaN scale, so that it shows wherever it is read.
float store_q8(const float* HWY_RESTRICT row, std::size_t dim, std::byte* HWY_RESTRICT to) {
  float largest = 0;
  bool finite = true;
  for (std::size_t i = 0; i < dim; ++i) {
    largest = std::max(largest, std::fabs(row[i]));
    finite = finite && std::isfinite(row[i]);
  }
  if (!finite || largest < kLeastOfQ8) {
    std::memset(to, 0, dim);
    return finite ? 0.0F : std::numeric_limits<float>::quiet_NaN();
  }
  const float inverse = 127.0F / largest;
  for (std::size_t i = 0; i < dim; ++i) {
    to[i] =
        static_cast<std::byte>(static_cast<std::int8_t>(std::clamp(std::nearbyint(row[i] * inverse), -127.0F, 127.0F)));
  }
  return largest / 127.0F;
}

void store_row(const KvFormat& format, const HeadView& head, std::byte* plane, std::int32_t slot, const float* row) {
  std::byte* to = head.row_of(plane, slot, format);
  const auto dim = static_cast<std::size_t>(format.dim);
  switch (format.type) {
    case KvType::f32:
      std::memcpy(to, row, dim * sizeof(float));
      break;
    case KvType::f16:
      store_f16(row, dim, to);
      break;
    case KvType::bf16:
      store_bf16(row, dim, to);
      break;
    case KvType::q8_0: {
      const float scale = store_q8(row, dim, to);
      std::byte* scales = head.page_of(plane, slot, format) + format.scale_offset();
      std::memcpy(scales + sizeof(float) * static_cast<std::size_t>(slot & (kPageTokens - 1)), &scale, sizeof scale);
      break;
    }
  }
}

void append_target(const KvFormat& format, const AppendItem& item) {
  for (std::int32_t r = 0; r < item.rows; ++r) {
    const std::size_t offset = static_cast<std::size_t>(r) * item.row_stride;
    store_row(format, *item.head, item.head->k_plane, item.slot + r, item.k + offset);
    store_row(format, *item.head, item.head->v_plane, item.slot + r, item.v + offset);
  }
}

}  // namespace
}  // namespace glimpse::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace glimpse::kernels {
HWY_EXPORT(append_target);

void append(const KvFormat& format, const AppendItem& item) {
  check_format(format);
  HWY_DYNAMIC_DISPATCH(append_target)(format, item);
}

}  // namespace glimpse::kernels
#endif
