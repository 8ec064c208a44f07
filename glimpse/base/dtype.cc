#include "glimpse/base/dtype.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"

namespace glimpse {
namespace {

constexpr std::array<std::pair<KvType, std::string_view>, 4> kNames{
    {{KvType::f32, "f32"}, {KvType::f16, "f16"}, {KvType::bf16, "bf16"}, {KvType::q8_0, "q8_0"}}};

}  // namespace

std::string_view name(KvType type) {
  for (const auto& [value, text] : kNames) {
    if (value == type) return text;
  }
  return "?";
}

KvType parse_kv_type(std::string_view text) {
  for (const auto& [value, known] : kNames) {
    if (known == text) return value;
  }
  throw UserError(fmt::format("unknown KV cache type '{}'; one of f32, f16, bf16, q8_0", excerpt(text)));
}

std::uint16_t f16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to 65536
  if (magnitude < 0x38800000u) {  // subnormal in f16: let the float adder round
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

float float_from_f16(std::uint16_t value) {
  const std::uint32_t sign = (value & 0x8000u) << 16;
  const std::uint32_t exponent = (value >> 10) & 0x1fu;
  const std::uint32_t mantissa = value & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

}  // namespace glimpse
