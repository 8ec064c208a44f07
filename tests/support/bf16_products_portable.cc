#include "tests/support/bf16_products_portable.h"

#include "glimpse/base/dtype.h"

namespace glimpse::kernels {
namespace {

float low(std::uint32_t pair) {
  return float_from_bf16(static_cast<std::uint16_t>(pair));
}
float high(std::uint32_t pair) {
  return float_from_bf16(static_cast<std::uint16_t>(pair >> 16));
}

void scores_portable(const Bf16Shape& shape, const std::uint16_t* keys, const std::uint32_t* queries, float* scores) {
  for (int key = 0; key < shape.keys; ++key) {
    for (int lane = 0; lane < shape.lanes; ++lane) {
      float sum = 0;
      for (int t = 0; t < shape.dim / 2; ++t) {
        const std::uint32_t query = queries[t * shape.lanes + lane];
        sum += float_from_bf16(keys[key * shape.dim + 2 * t]) * low(query);
        sum += float_from_bf16(keys[key * shape.dim + 2 * t + 1]) * high(query);
      }
      scores[key * shape.lanes + lane] = sum;
    }
  }
}

void values_portable(const Bf16Shape& shape, const std::uint32_t* values, const float* weights, const float* fade,
                     float* out) {
  for (int i = 0; i < shape.dim; ++i) {
    const std::uint32_t* column = values + (i / 8) * (kBf16Keys / 2) * 8 + i % 8;
    for (int lane = 0; lane < shape.lanes; ++lane) {
      float sum = out[i * shape.lanes + lane] * fade[lane];
      for (int t = 0; t < shape.keys / 2; ++t) {
        const float* pair = weights + 2 * t * shape.lanes + lane;
        sum += low(column[t * 8]) * float_from_bf16(bf16_from_float(pair[0]));
        sum += high(column[t * 8]) * float_from_bf16(bf16_from_float(pair[shape.lanes]));
      }
      out[i * shape.lanes + lane] = sum;
    }
  }
}

constexpr Bf16Products kPortable{scores_portable, values_portable};

}  // namespace

const Bf16Products* bf16_products_portable() {
  return &kPortable;
}

}  // namespace glimpse::kernels
