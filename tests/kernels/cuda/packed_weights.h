// Packed weights of random values, and what products with them should give.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "glimpse/base/dtype.h"
#include "glimpse/kernels/cuda/packed.h"
#include "tests/support/packed_values.h"

namespace glimpse::kernels::cuda::test {

inline constexpr Packing kPackings[] = {{4, Scales::block},        {4, Scales::block_offset}, {4, Scales::super_offset},
                                        {5, Scales::block},        {5, Scales::block_offset}, {5, Scales::super_offset},
                                        {6, Scales::super_signed}, {8, Scales::block}};

/// And bf16.
inline std::vector<Packing> all_packings() {
  std::vector<Packing> all(std::begin(kPackings), std::end(kPackings));
  all.push_back(kBf16Rows);
  return all;
}

/// Random words that mean values of about one.
struct Weights {
  Weights(Packing packing, int outputs, int inputs) : layout{packing, outputs, inputs}, words(layout.words()) {
    std::mt19937 random(17);
    if (packing.in_rows()) {
      fill_with_bf16(random);
      return;
    }
    for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random());
    std::uniform_real_distribution<float> scale(0.2F, 1.0F);
    const auto half = [&](float most) { return f16_from_float(scale(random) * most); };
    const auto halves = [&](std::size_t from, std::size_t to, float low, float high) {
      for (std::size_t i = from; i < to; ++i) {
        words[i] = half(low) | static_cast<std::uint32_t>(half(high)) << 16;
      }
    };
    const float most = 2.0F / static_cast<float>(1 << packing.bits);
    const bool super = packing.scales == Scales::super_offset || packing.scales == Scales::super_signed;
    const std::size_t groups = static_cast<std::size_t>(inputs % kPackedInputs) / 32;
    for (std::size_t number = 0; number < layout.block_rows() * layout.supers(); ++number) {
      const std::size_t begin = number * layout.super_words();
      const std::size_t scales = begin + layout.scales(), more = begin + layout.more();
      const std::size_t end = begin + layout.super_words();
      if (super) {
        halves(more, end, most / 64, -most / 8);
      } else {
        halves(scales, more, most, most);
        halves(more, end, -1, -1);
      }
      if (groups == 0 || (number + 1) % layout.supers() != 0) continue;
      for (std::size_t i = 0; i < 64; ++i) {  // behind the last input scales are zero
        if (i % 4 < groups / 2) continue;
        words[scales + i] = 0;
        if (layout.more_words() == 64) words[more + i] = 0;
      }
    }
    for (std::size_t output = 0; output < static_cast<std::size_t>(outputs); ++output) {
      for (std::size_t input = 0; input < static_cast<std::size_t>(inputs); ++input) {
        values.push_back(glimpse::test::packed_value(layout, words, static_cast<int>(output), static_cast<int>(input)));
      }
    }
  }
  PackedLayout layout;
  std::vector<std::uint32_t> words;
  std::vector<double> values;  ///< [outputs, inputs]

 private:
  void fill_with_bf16(std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (std::uint32_t& word : words) {
      const std::uint16_t low = bf16_from_float(normal(random)), high = bf16_from_float(normal(random));
      word = low | static_cast<std::uint32_t>(high) << 16;
      values.push_back(float_from_bf16(low));
      values.push_back(float_from_bf16(high));
    }
  }
};

/// Normally distributed.
inline std::vector<Bf16> normal_bf16(std::size_t count) {
  std::mt19937 random(23);
  std::normal_distribution<float> normal;
  std::vector<Bf16> bits(count);
  for (Bf16& x : bits) x = bf16_from_float(normal(random));
  return bits;
}

/// Sums in double precision, [rows, outputs], and those of the terms' sizes.
struct Summed {
  std::vector<double> sums, sizes;
};
inline Summed summed(const Weights& weights, const std::vector<Bf16>& in, int rows) {
  const auto width = static_cast<std::size_t>(weights.layout.inputs);
  Summed made;
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
    for (std::size_t output = 0; output < static_cast<std::size_t>(weights.layout.outputs); ++output) {
      double sum = 0, size = 0;
      for (std::size_t i = 0; i < width; ++i) {
        const double term = weights.values[output * width + i] * float_from_bf16(in[row * width + i]);
        sum += term;
        size += std::abs(term);
      }
      made.sums.push_back(sum);
      made.sizes.push_back(size);
    }
  }
  return made;
}

}  // namespace glimpse::kernels::cuda::test
