#include "glimpse/base/dtype.h"
#include "glimpse/kernels/cuda/made_rows.h"

namespace glimpse::kernels::cuda {
namespace {

std::uint16_t half_of(float value, KvType type) {
  return type == KvType::f16 ? f16_from_float(value) : bf16_from_float(value);
}
float float_of(std::uint16_t value, KvType type) {
  return type == KvType::f16 ? float_from_f16(value) : float_from_bf16(value);
}

}  // namespace

std::vector<std::uint32_t> packed_basis(std::span<const float> basis, int columns, int dim, KvType type) {
  constexpr int kDeep = 16, kWide = 8, kLanes = 32;
  std::vector<std::uint32_t> words;
  const auto two = [&](int column, int d, bool rest) {
    std::uint32_t both = 0;
    for (int i = 0; i < 2; ++i) {
      const int at = column + i;
      const float value =
          at < columns
              ? basis[static_cast<std::size_t>(at) * static_cast<std::size_t>(dim) + static_cast<std::size_t>(d)]
              : 0.0F;
      const std::uint16_t most = half_of(value, type);
      both |= std::uint32_t{rest ? half_of(value - float_of(most, type), type) : most} << (16 * i);
    }
    return both;
  };
  for (int k = 0; k < columns; k += kDeep) {
    for (int n = 0; n < dim; n += kWide) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const int column = k + lane % 4 * 2, d = n + lane / 4;
        for (const bool rest : {false, true}) {
          words.push_back(two(column, d, rest));
          words.push_back(two(column + kWide, d, rest));
        }
      }
    }
  }
  return words;
}

}  // namespace glimpse::kernels::cuda
