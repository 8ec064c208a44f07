// Products with packed and bf16 weights on a GPU, against the same values multiplied in double precision.
#include "glimpse/kernels/cuda/few_rows.h"

#include "device_bed.h"
#include "glimpse/base/dtype.h"
#include "packed_weights.h"

namespace glimpse::kernels::cuda::test {
namespace {

class FewRows : public CudaTest {
 protected:
  std::vector<float> multiplied(const Weights& weights, const std::vector<Bf16>& in, int rows, int stride) {
    const Array<std::uint32_t> words(*stream_, weights.words);
    const Array<Bf16> from(*stream_, in);
    const Array<float> out(*stream_, std::vector<float>(static_cast<std::size_t>(rows * stride), kNan));
    multiply_few_rows(*stream_, {.weight = {weights.layout, words.constant()},
                                 .in = from.constant(),
                                 .rows = rows,
                                 .out = out.pointer(),
                                 .stride = stride});
    stream_->synchronize();
    return out.values();
  }
};

TEST_F(FewRows, MultiplyWeights) {
  for (const Packing& packing : all_packings()) {
    const bool super = packing.scales == Scales::super_offset || packing.scales == Scales::super_signed;
    for (const auto& [outputs, width] : {std::pair{40, super ? 512 : 576}, std::pair{16, 4096}, std::pair{1027, 256}}) {
      const Weights weights(packing, outputs, width);
      const auto size = static_cast<std::size_t>(width);
      const std::vector<Bf16> in = normal_bf16(32 * size);
      std::vector<float> all;
      for (const int rows : {32, 9, 16, 17, 8, 1, 3}) {
        if (packing.in_rows() && rows > kBf16FewRows) continue;
        SCOPED_TRACE(testing::Message() << packing.bits << " bits, scales " << static_cast<int>(packing.scales) << ", "
                                        << outputs << " x " << width << ", rows " << rows);
        const int stride = outputs + 5;
        const std::vector<float> got =
            multiplied(weights, {in.begin(), in.begin() + static_cast<std::ptrdiff_t>(size) * rows}, rows, stride);
        if (all.empty() || rows == 8) all = got;
        const Summed want = summed(weights, in, rows);
        for (std::size_t i = 0; i < got.size(); ++i) {
          const std::size_t row = i / static_cast<std::size_t>(stride), output = i % static_cast<std::size_t>(stride);
          if (output >= static_cast<std::size_t>(outputs)) {
            ASSERT_TRUE(std::isnan(got[i])) << "written behind a row's end";
            continue;
          }
          ASSERT_EQ(got[i], all[i]) << "bits depend on other rows";
          const std::size_t at = row * static_cast<std::size_t>(outputs) + output;
          ASSERT_NEAR(got[i], want.sums[at], want.sizes[at] * 1e-5) << row << ", " << output;
        }
      }
    }
  }
}

TEST_F(FewRows, GatePairsOfEight) {
  const Weights weights({6, Scales::super_signed}, 96, 512);
  for (const int rows : {1, 9}) {
    const auto count = static_cast<std::size_t>(rows);
    const std::vector<Bf16> in = normal_bf16(count * 512);
    const Array<std::uint32_t> words(*stream_, weights.words);
    const Array<Bf16> from(*stream_, in), out(*stream_, count * 48);
    multiply_few_rows(*stream_, {.weight = {weights.layout, words.constant()},
                                 .in = from.constant(),
                                 .rows = rows,
                                 .end = FewRowsOp::End::gate,
                                 .narrow = out.pointer()});
    const std::vector<double> sums = summed(weights, in, rows).sums;
    const std::vector<Bf16> got = out.values();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::size_t at = i / 48 * 96 + i % 48 / 8 * 16 + i % 8;
      const double want = sums[at] / (1 + std::exp(-sums[at])) * sums[at + 8];
      ASSERT_NEAR(float_from_bf16(got[i]), want, std::abs(want) * 0x1.04p-8 + 1e-3) << i;
    }
  }
}

std::vector<float> normal_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) x = normal(random);
  return values;
}

/// A product that adds to a residual, and one with its norm: both against doubles, the second from what the first left.
TEST_F(FewRows, AddToAResidualAndDivideByItsNorm) {
  constexpr int kWidth = 512, kNext = 4240;
  constexpr double kEpsilon = 0.5;
  for (const Packing& packing : all_packings()) {
    const Weights adds(packing, kWidth, 768), next(packing, kNext, kWidth);
    const Array<std::uint32_t> add_words(*stream_, adds.words), next_words(*stream_, next.words);
    const std::vector<float> norm = normal_floats(kWidth, 5);
    const Array<float> on_device(*stream_, norm);
    for (const int rows : {1, 2, 3, 8, 9, 32}) {
      if (packing.in_rows() && rows > kBf16FewRows) continue;
      SCOPED_TRACE(testing::Message() << packing.bits << " bits, scales " << static_cast<int>(packing.scales)
                                      << ", rows " << rows);
      const auto count = static_cast<std::size_t>(rows);
      const std::vector<float> before = normal_floats(count * kWidth, 7);
      const std::vector<Bf16> in = normal_bf16(count * 768);
      const Array<Bf16> from(*stream_, in), narrow(*stream_, count * kWidth);
      const Array<float> residual(*stream_, before), squares(*stream_, count * kWidth / 16),
          out(*stream_, count * kNext);
      multiply_few_rows(*stream_, {.weight = {adds.layout, add_words.constant()},
                                   .in = from.constant(),
                                   .rows = rows,
                                   .end = FewRowsOp::End::add,
                                   .out = residual.pointer(),
                                   .norm = on_device.constant(),
                                   .narrow = narrow.pointer(),
                                   .squares_left = squares.pointer()});
      multiply_few_rows(*stream_, {.weight = {next.layout, next_words.constant()},
                                   .in = narrow.constant(),
                                   .rows = rows,
                                   .out = out.pointer(),
                                   .stride = kNext,
                                   .squares = squares.constant(),
                                   .width = kWidth,
                                   .epsilon = static_cast<float>(kEpsilon)});
      stream_->synchronize();
      const Summed added = summed(adds, in, rows);
      const std::vector<float> after = residual.values();
      const std::vector<Bf16> narrowed = narrow.values();
      std::vector<double> squared(count);
      for (std::size_t i = 0; i < after.size(); ++i) {
        ASSERT_NEAR(after[i], before[i] + added.sums[i], added.sizes[i] * 1e-5 + 1e-5) << i;
        const double times = static_cast<double>(after[i]) * norm[i % kWidth];
        ASSERT_NEAR(float_from_bf16(narrowed[i]), times, std::abs(times) * 0x1.02p-8) << i;
        squared[i / kWidth] += static_cast<double>(after[i]) * after[i];
      }
      const Summed wanted = summed(next, narrowed, rows);
      const std::vector<float> got = out.values();
      for (std::size_t i = 0; i < got.size(); ++i) {
        const double scale = 1 / std::sqrt(squared[i / kNext] / kWidth + kEpsilon);
        ASSERT_NEAR(got[i], wanted.sums[i] * scale, wanted.sizes[i] * scale * 2e-5) << i;
      }
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
    const std::vector<std::int32_t> tokens{71, 0, 40}, said{-2, -3, 40};
    const std::vector<Standing> standings{{7, 0}, {71, 1}, {-1, 0}};
    const Array<std::int32_t> which(*stream_, said);
    const Array<Standing> there(*stream_, standings);
    const Array<float> rows(*stream_, 3 * size);
    unpack_rows(*stream_, {packed, {which.constant(), there.constant()}, rows.pointer(), 3});
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
