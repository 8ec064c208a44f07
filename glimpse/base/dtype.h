// Element types of the KV cache and conversions of single values. Any thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace glimpse {

/// How a row (one token, one KV head, `dim` values) of K or V is stored.
enum class KvType : std::uint8_t { f32, f16, bf16, q8_0 };

std::string_view name(KvType type);

/// Throws UserError naming the known types.
KvType parse_kv_type(std::string_view text);

/// Bytes of one row's values. q8_0: `dim` signed bytes; its float scale is stored apart (see kernels/views.h).
constexpr std::size_t row_bytes(KvType type, int dim) {
  switch (type) {
    case KvType::f32:
      return static_cast<std::size_t>(dim) * 4;
    case KvType::f16:
    case KvType::bf16:
      return static_cast<std::size_t>(dim) * 2;
    case KvType::q8_0:
      return static_cast<std::size_t>(dim);
  }
  return 0;
}

/// A row of q8_0 whose values are all smaller than this is stored as zeros: its scale, a 127th of the largest, would be
/// subnormal, and one over that need not be a float.
inline constexpr float kLeastOfQ8 = 127 * std::numeric_limits<float>::min();

/// Round to nearest even; NaN stays NaN.
inline std::uint16_t bf16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float float_from_bf16(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

std::uint16_t f16_from_float(float value);
float float_from_f16(std::uint16_t value);

}  // namespace glimpse
