#include "glimpse/base/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "glimpse/base/error.h"

namespace glimpse {
namespace {

/// The definition of a small IEEE format: 1 sign bit, `exponent_bits`, `mantissa_bits`. Exact in double.
double value_of(std::uint32_t code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double mantissa = code & ((1u << mantissa_bits) - 1);
  const double sign = code >> (exponent_bits + mantissa_bits) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

double f16_value(std::uint32_t code) {
  return value_of(code, 5, 10);
}
double bf16_value(std::uint32_t code) {
  return value_of(code, 8, 7);
}

/// Round to nearest even by searching all codes of positive numbers, infinity taken as the next power of two.
template <class Value>
std::uint16_t nearest_code(float value, std::uint16_t infinity, const Value& value_of_code) {
  const double magnitude = std::abs(static_cast<double>(value));
  const auto real = [&](std::uint32_t code) {
    return code < infinity ? value_of_code(code) : 2 * value_of_code(infinity - (infinity & -infinity));
  };
  std::uint32_t below = 0;
  std::uint32_t above = infinity;
  std::uint16_t code = infinity;
  if (magnitude < real(infinity)) {
    while (above - below > 1) {
      const std::uint32_t middle = (below + above) / 2;
      (real(middle) <= magnitude ? below : above) = middle;
    }
    const double down = magnitude - real(below);
    const double up = real(above) - magnitude;
    code = static_cast<std::uint16_t>(down < up || (down == up && below % 2 == 0) ? below : above);
  }
  return static_cast<std::uint16_t>(code | (std::signbit(value) ? 0x8000u : 0u));
}

/// Numbers of every exponent, exact ties between two codes of either format, and the neighbours of those ties.
std::vector<float> probes() {
  std::vector<float> values{0.0f, -0.0f, 65504.0f, 65519.996f, 65520.0f, 65536.0f, 1e-8f, 3.4028235e38f, 1e-45f};
  values.push_back(std::numeric_limits<float>::infinity());
  values.push_back(-std::numeric_limits<float>::infinity());
  std::mt19937 random(11);
  for (int i = 0; i < 200000; ++i) {
    std::uint32_t bits = static_cast<std::uint32_t>(random());
    if (i % 4 == 1) bits = (bits & 0xffff0000u) | 0x8000u;                                   // bf16 tie
    if (i % 4 == 2) bits = (bits & 0xffffe000u) | 0x1000u;                                   // f16 tie
    if (i % 4 == 3) bits = (bits & 0x8fffffffu) | (i % 8 == 3 ? 0x38000000u : 0x30000000u);  // f16 range
    for (const std::uint32_t near : {bits, bits + 1, bits - 1}) {
      const auto value = std::bit_cast<float>(near);
      if (!std::isnan(value)) values.push_back(value);
    }
  }
  return values;
}

TEST(Dtype, EveryF16ValueIsExactAndRoundTrips) {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const float value = float_from_f16(static_cast<std::uint16_t>(code));
    const double expected = f16_value(code);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_TRUE(std::isnan(float_from_f16(f16_from_float(value)))) << code;
      continue;
    }
    EXPECT_EQ(value, expected) << code;
    EXPECT_EQ(std::signbit(value), code >= 0x8000u) << code;
    EXPECT_EQ(f16_from_float(value), code);
  }
}

TEST(Dtype, EveryBf16ValueIsExactAndRoundTrips) {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const float value = float_from_bf16(static_cast<std::uint16_t>(code));
    const double expected = bf16_value(code);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(value)))) << code;
      continue;
    }
    EXPECT_EQ(value, expected) << code;
    EXPECT_EQ(bf16_from_float(value), code);
  }
}

TEST(Dtype, RoundsToNearestEven) {
  for (const float value : probes()) {
    EXPECT_EQ(f16_from_float(value), nearest_code(value, 0x7c00, f16_value)) << value;
    EXPECT_EQ(bf16_from_float(value), nearest_code(value, 0x7f80, bf16_value)) << value;
  }
}

TEST(Dtype, NanStaysNan) {
  // Among them payloads that live in the dropped bits only, which plain rounding turns into infinity or zero.
  for (const std::uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu}) {
    const auto value = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(value)))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(float_from_f16(f16_from_float(value)))) << std::hex << bits;
  }
}

TEST(Dtype, NamesParseBack) {
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
    EXPECT_EQ(parse_kv_type(name(type)), type);
  }
  for (const char* wrong : {"", "F16", "q4_0", "f32 "}) {
    try {
      parse_kv_type(wrong);
      FAIL() << wrong;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr(wrong), testing::HasSubstr("f32, f16, bf16, q8_0")));
    }
  }
}

TEST(Dtype, RowBytes) {
  EXPECT_EQ(row_bytes(KvType::f32, 64), 256u);
  EXPECT_EQ(row_bytes(KvType::f16, 64), 128u);
  EXPECT_EQ(row_bytes(KvType::bf16, 64), 128u);
  EXPECT_EQ(row_bytes(KvType::q8_0, 64), 64u);
}

}  // namespace
}  // namespace glimpse
