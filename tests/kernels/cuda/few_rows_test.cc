// Products with packed weights on a GPU, against the same values multiplied in double precision.
#include "glimpse/kernels/cuda/few_rows.h"

#include "device_bed.h"
#include "glimpse/base/dtype.h"
#include "tests/support/packed_values.h"

namespace glimpse::kernels::cuda::test {
namespace {

constexpr Packing kPackings[] = {{4, Scales::block},        {4, Scales::block_offset}, {4, Scales::super_offset},
                                 {5, Scales::block},        {5, Scales::block_offset}, {5, Scales::super_offset},
                                 {6, Scales::super_signed}, {8, Scales::block}};

/// Random words that mean values of about one.
struct Weights {
  Weights(Packing packing, int outputs, int inputs) : layout{packing, outputs, inputs}, words(layout.words()) {
    std::mt19937 random(17);
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
    if (super) {
      halves(layout.more(), layout.words(), most / 64, -most / 8);
    } else {
      halves(layout.scales(), layout.more(), most, most);
      halves(layout.more(), layout.words(), -1, -1);
    }
    // Behind the last input scales are zero.
    const std::size_t groups = static_cast<std::size_t>(inputs % kPackedInputs) / 32;
    for (std::size_t last = layout.supers() - 1; groups > 0 && last < layout.block_rows() * layout.supers();
         last += layout.supers()) {
      for (std::size_t i = 0; i < 64; ++i) {
        if (i % 4 < groups / 2) continue;
        words[layout.scales() + last * 64 + i] = 0;
        if (layout.more_words() == 64) words[layout.more() + last * 64 + i] = 0;
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
};

class FewRows : public CudaTest {
 protected:
  static std::vector<Bf16> inputs(std::size_t count) {
    std::mt19937 random(23);
    std::normal_distribution<float> normal;
    std::vector<Bf16> bits(count);
    for (Bf16& x : bits) x = bf16_from_float(normal(random));
    return bits;
  }
  std::vector<float> multiplied(const Weights& weights, const std::vector<Bf16>& in, int rows, int stride) {
    const Array<std::uint32_t> words(*stream_, weights.words);
    const Array<Bf16> from(*stream_, in);
    const Array<float> out(*stream_, std::vector<float>(static_cast<std::size_t>(rows * stride), kNan));
    multiply_few_rows(*stream_, {.weight = {weights.layout, words.constant()},
                                 .in = from.constant(),
                                 .out = out.pointer(),
                                 .rows = rows,
                                 .stride = stride});
    stream_->synchronize();
    return out.values();
  }
};

TEST_F(FewRows, MultiplyPackedWeights) {
  for (const Packing& packing : kPackings) {
    const bool super = packing.scales == Scales::super_offset || packing.scales == Scales::super_signed;
    for (const auto& [outputs, width] : {std::pair{40, super ? 512 : 576}, std::pair{16, 4096}, std::pair{1027, 256}}) {
      const Weights weights(packing, outputs, width);
      const auto size = static_cast<std::size_t>(width);
      const std::vector<Bf16> in = inputs(32 * size);
      std::vector<float> all;
      for (const int rows : {32, 9, 16, 17, 8, 1, 3}) {
        SCOPED_TRACE(testing::Message() << packing.bits << " bits, scales " << static_cast<int>(packing.scales) << ", "
                                        << outputs << " x " << width << ", rows " << rows);
        const int stride = outputs + 5;
        const std::vector<float> got =
            multiplied(weights, {in.begin(), in.begin() + static_cast<std::ptrdiff_t>(size) * rows}, rows, stride);
        if (all.empty() || rows == 8) all = got;
        for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
          for (std::size_t output = 0; output < static_cast<std::size_t>(stride); ++output) {
            const float found = got[row * static_cast<std::size_t>(stride) + output];
            if (output >= static_cast<std::size_t>(outputs)) {
              ASSERT_TRUE(std::isnan(found)) << "written behind a row's end";
              continue;
            }
            ASSERT_EQ(found, all[row * static_cast<std::size_t>(stride) + output]) << "bits depend on other rows";
            double want = 0, sizes = 0;
            for (std::size_t i = 0; i < size; ++i) {
              const double term = weights.values[output * size + i] * float_from_bf16(in[row * size + i]);
              want += term;
              sizes += std::abs(term);
            }
            ASSERT_NEAR(found, want, sizes * 1e-5) << row << ", " << output;
          }
        }
      }
    }
  }
}

/// Sums in double precision, [rows, outputs].
std::vector<double> summed(const Weights& weights, const std::vector<Bf16>& in, int rows) {
  const auto width = static_cast<std::size_t>(weights.layout.inputs);
  std::vector<double> sums;
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
    for (std::size_t output = 0; output < static_cast<std::size_t>(weights.layout.outputs); ++output) {
      double sum = 0;
      for (std::size_t i = 0; i < width; ++i) {
        sum += weights.values[output * width + i] * float_from_bf16(in[row * width + i]);
      }
      sums.push_back(sum);
    }
  }
  return sums;
}

TEST_F(FewRows, GatePairsOfEight) {
  const Weights weights({6, Scales::super_signed}, 96, 512);
  for (const int rows : {1, 9}) {
    const auto count = static_cast<std::size_t>(rows);
    const std::vector<Bf16> in = inputs(count * 512);
    const Array<std::uint32_t> words(*stream_, weights.words);
    const Array<Bf16> from(*stream_, in), out(*stream_, count * 48);
    multiply_few_rows(
        *stream_,
        {.weight = {weights.layout, words.constant()}, .in = from.constant(), .rows = rows, .gated = out.pointer()});
    const std::vector<double> sums = summed(weights, in, rows);
    const std::vector<Bf16> got = out.values();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::size_t at = i / 48 * 96 + i % 48 / 8 * 16 + i % 8;
      const double want = sums[at] / (1 + std::exp(-sums[at])) * sums[at + 8];
      ASSERT_NEAR(float_from_bf16(got[i]), want, std::abs(want) * 0x1.04p-8 + 1e-3) << i;
    }
  }
}

TEST_F(FewRows, UnpackRounds) {
  for (const Packing& packing : kPackings) {
    const bool super = packing.scales == Scales::super_offset || packing.scales == Scales::super_signed;
    const int width = super ? 512 : 576;
    const Weights weights(packing, 72, width);
    const auto size = static_cast<std::size_t>(width);
    SCOPED_TRACE(testing::Message() << packing.bits << " bits, scales " << static_cast<int>(packing.scales));
    const Array<std::uint32_t> words(*stream_, weights.words);
    const Packed<Place::device> packed{weights.layout, words.constant()};
    const Array<Bf16> out(*stream_, 40 * size);
    unpack(*stream_, {packed, 32, 40, out.pointer()});
    const std::vector<std::int32_t> tokens{71, 0, 40};
    const Array<std::int32_t> which(*stream_, tokens);
    const Array<float> rows(*stream_, 3 * size);
    unpack_rows(*stream_, {packed, which.constant(), rows.pointer(), 3});
    const std::vector<Bf16> got = out.values();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double want = weights.values[32 * size + i];
      ASSERT_NEAR(float_from_bf16(got[i]), want, std::abs(want) * 0x1.02p-8 + 1e-6) << i;
    }
    const std::vector<float> taken = rows.values();
    for (std::size_t i = 0; i < taken.size(); ++i) {
      const double want = weights.values[static_cast<std::size_t>(tokens[i / size]) * size + i % size];
      ASSERT_NEAR(taken[i], want, std::abs(want) * 1e-6 + 1e-6) << i;
    }
  }
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
