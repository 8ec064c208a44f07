// Products of weights with up to 64 rows, or 128, against plain loops.
#include "glimpse/kernels/cuda/wide_rows.h"

#include "device_bed.h"
#include "glimpse/base/dtype.h"
#include "packed_weights.h"

namespace glimpse::kernels::cuda::test {
namespace {

class WideRows : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (stream_ != nullptr && !has_wide_rows(*stream_, {kBf16Rows, 64, 64})) GTEST_SKIP() << "no Hopper";
  }
  std::vector<std::uint16_t> normals(std::size_t count) {
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> made(count);
    for (std::uint16_t& x : made) x = bf16_from_float(normal(random_));
    return made;
  }
  static std::vector<std::uint32_t> words_of(const std::vector<std::uint16_t>& values) {
    std::vector<std::uint32_t> words(values.size() / 2);
    std::memcpy(words.data(), values.data(), words.size() * sizeof(std::uint32_t));
    return words;
  }
  std::mt19937 random_{7};
};

struct WideCase {
  int outputs, inputs;
};

TEST_F(WideRows, MultiplyWeights) {
  const Array<float> space = make_wide_space(*stream_);
  for (const WideCase& c :
       {WideCase{128, 64}, WideCase{576, 576}, WideCase{200, 1536}, WideCase{6144, 4096}, WideCase{1000, 14336},
        WideCase{40000, 128}, WideCase{28672, 192}, WideCase{stream_->device().processors * kLeastManyOutputs, 128}}) {
    const int most = most_wide_rows(*stream_, {kBf16Rows, c.outputs, c.inputs});
    ASSERT_EQ(most, c.outputs >= stream_->device().processors * 128 ? 128 : 64);
    const auto all = static_cast<std::size_t>(most);
    const std::vector<std::uint16_t> weight = normals(static_cast<std::size_t>(c.outputs) *
                                                      static_cast<std::size_t>(c.inputs)),
                                     in = normals(all * static_cast<std::size_t>(c.inputs));
    const Array<std::uint32_t> on_weight(*stream_, words_of(weight));
    const Array<std::uint16_t> on_in(*stream_, in);
    const int stride = c.outputs + 3;
    std::vector<float> of_all;
    for (const int rows : {most, 1, 9, 16, 17, 32, 33, 48, 50, 64, 65, 80, 81, 96, 97}) {
      if (rows > most) break;
      SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(c.outputs) + " x " + std::to_string(c.inputs));
      const std::size_t size = all * static_cast<std::size_t>(stride);
      const Array<float> out(*stream_, std::vector<float>(size, kNan)), again(*stream_, std::vector<float>(size, kNan));
      const FewRowsOp op{.weight = {{kBf16Rows, c.outputs, c.inputs}, on_weight.constant()},
                         .in = on_in.constant(),
                         .rows = rows,
                         .out = out.pointer(),
                         .stride = stride};
      multiply_wide_rows(*stream_, space, op);
      FewRowsOp second = op;
      second.out = again.pointer();
      multiply_wide_rows(*stream_, space, second);
      const std::vector<float> got = out.values();
      EXPECT_TRUE(same_bits(got, again.values())) << "two runs differ";
      if (of_all.empty()) of_all = got;
      for (std::size_t row = 0; row < all; ++row) {
        for (std::size_t output = 0; output < static_cast<std::size_t>(stride); ++output) {
          const float value = got[row * static_cast<std::size_t>(stride) + output];
          if (row >= static_cast<std::size_t>(rows) || output >= static_cast<std::size_t>(c.outputs)) {
            ASSERT_TRUE(std::isnan(value)) << "written beside the result";
            continue;
          }
          ASSERT_EQ(value, of_all[row * static_cast<std::size_t>(stride) + output]) << "other rows change a row";
          if (rows != most || (row * 7 + output) % 61 != 0) continue;
          double want = 0;
          const auto inputs = static_cast<std::size_t>(c.inputs);
          for (std::size_t i = 0; i < inputs; ++i) {
            want += static_cast<double>(float_from_bf16(weight[output * inputs + i])) *
                    static_cast<double>(float_from_bf16(in[row * inputs + i]));
          }
          ASSERT_NEAR(value, want, 2e-5 * c.inputs / 8 + 1e-4) << row << " " << output;
        }
      }
    }
  }
}

/// Weights are rounded to bf16, up to twice: what that leaves of a sum of many.
TEST_F(WideRows, MultiplyQuantisedWeights) {
  const Array<float> space = make_wide_space(*stream_);
  for (const Packing& packing : kPackings) {
    const bool super = packing.scales == Scales::super_offset || packing.scales == Scales::super_signed;
    for (const auto& [outputs, width] :
         {std::pair{40, super ? 512 : 576}, std::pair{1027, 256}, std::pair{300, 4096}, std::pair{6144, 1792}}) {
      const Weights weights(packing, outputs, width);
      const auto inputs = static_cast<std::size_t>(width), count = static_cast<std::size_t>(outputs);
      const std::vector<Bf16> in = normal_bf16(64 * inputs);
      const Array<std::uint32_t> words(*stream_, weights.words);
      const Array<Bf16> from(*stream_, in);
      const std::size_t stride = count + 5;
      std::vector<float> of_all;
      for (const int rows : {64, 9, 16, 17, 33}) {
        SCOPED_TRACE(testing::Message() << packing.bits << " bits, scales " << static_cast<int>(packing.scales) << ", "
                                        << outputs << " x " << width << ", rows " << rows);
        const Array<float> out(*stream_, std::vector<float>(64 * stride, kNan));
        multiply_wide_rows(*stream_, space,
                           {.weight = {weights.layout, words.constant()},
                            .in = from.constant(),
                            .rows = rows,
                            .out = out.pointer(),
                            .stride = static_cast<int>(stride)});
        const std::vector<float> got = out.values();
        if (rows == 64) of_all = got;
        for (std::size_t i = 0; i < got.size(); ++i) {
          const std::size_t row = i / stride, output = i % stride;
          if (row >= static_cast<std::size_t>(rows) || output >= count) {
            ASSERT_TRUE(std::isnan(got[i])) << "written beside the result";
            continue;
          }
          ASSERT_EQ(got[i], of_all[i]) << "other rows change a row";
          if (rows != 64 || i % 53 != 0) continue;
          double want = 0, size = 0;
          for (std::size_t k = 0; k < inputs; ++k) {
            const double term =
                weights.values[output * inputs + k] * static_cast<double>(float_from_bf16(in[row * inputs + k]));
            want += term;
            size += std::abs(term);
          }
          ASSERT_NEAR(got[i], want, size * 0x1p-6 / std::sqrt(inputs)) << row << ", " << output;
        }
      }
    }
  }
}

TEST_F(WideRows, GateQuantisedPairsOfEight) {
  const Array<float> space = make_wide_space(*stream_);
  const Weights weights({4, Scales::super_offset}, 400, 1024);
  const std::vector<Bf16> in = normal_bf16(std::size_t{40} * 1024);
  const Array<std::uint32_t> words(*stream_, weights.words);
  const Array<Bf16> from(*stream_, in), gated(*stream_, std::vector<Bf16>(std::size_t{48} * 200, 0x7fc0));
  const Array<float> sums(*stream_, std::size_t{40} * 400);
  FewRowsOp op{.weight = {weights.layout, words.constant()},
               .in = from.constant(),
               .rows = 40,
               .out = sums.pointer(),
               .stride = 400};
  multiply_wide_rows(*stream_, space, op);
  op.end = FewRowsOp::End::gate;
  op.narrow = gated.pointer();
  multiply_wide_rows(*stream_, space, op);
  const std::vector<float> of = sums.values();
  const std::vector<Bf16> got = gated.values();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float value = float_from_bf16(got[i]);
    if (i >= std::size_t{40} * 200) {
      ASSERT_TRUE(std::isnan(value)) << "written beside the result";
      continue;
    }
    const std::size_t at = i / 200 * 400 + i % 200 / 8 * 16 + i % 8;
    const double x = of[at], want = x / (1 + std::exp(-x)) * of[at + 8];
    ASSERT_NEAR(value, want, std::abs(want) * 0x1.1p-8 + 1e-6) << i;
  }
}

TEST_F(WideRows, GatePairsOfEight) {
  const Array<float> space = make_wide_space(*stream_);
  constexpr std::size_t kMost = 128;
  constexpr int kFew = 400, kMany = 20000, kInputs = 1024;
  const std::vector<std::uint16_t> weight = normals(std::size_t{kMany} * kInputs), in = normals(kMost * kInputs);
  const Array<std::uint32_t> on_weight(*stream_, words_of(weight));
  const Array<std::uint16_t> on_in(*stream_, in);
  for (const int rows : {9, 40, 64, 65, 80, 90, 128}) {
    SCOPED_TRACE(rows);
    const std::size_t outputs = rows <= 64 ? kFew : kMany;
    const Array<float> sums(*stream_, static_cast<std::size_t>(rows) * outputs);
    const Array<std::uint16_t> gated(*stream_, std::vector<std::uint16_t>(kMost * outputs / 2, 0x7fc0));
    FewRowsOp op{.weight = {{kBf16Rows, static_cast<int>(outputs), kInputs}, on_weight.constant()},
                 .in = on_in.constant(),
                 .rows = rows,
                 .out = sums.pointer(),
                 .stride = static_cast<int>(outputs)};
    multiply_wide_rows(*stream_, space, op);
    op.end = FewRowsOp::End::gate;
    op.narrow = gated.pointer();
    multiply_wide_rows(*stream_, space, op);
    const std::vector<float> of = sums.values();
    const std::vector<std::uint16_t> got = gated.values();
    for (std::size_t row = 0; row < kMost; ++row) {
      for (std::size_t pair = 0; pair < outputs / 2; ++pair) {
        const float value = float_from_bf16(got[row * (outputs / 2) + pair]);
        if (row >= static_cast<std::size_t>(rows)) {
          ASSERT_TRUE(std::isnan(value)) << "written beside the result";
          continue;
        }
        const std::size_t at = row * outputs + pair / 8 * 16 + pair % 8;
        const double x = of[at], want = x / (1 + std::exp(-x)) * of[at + 8];
        ASSERT_NEAR(value, want, std::abs(want) * 0x1.1p-8 + 1e-6) << row << " " << pair;
      }
    }
  }
}

/// A product that adds to a residual and one with its norm, each against the sums that a product stores. Of quantised
/// weights blocks share tiles; of bf16 a block has up to 64 outputs, more, or more than at a time.
TEST_F(WideRows, AddToAResidualAndDivideByItsNorm) {
  const Array<float> space = make_wide_space(*stream_);
  constexpr std::size_t kMost = kMostWideRows + 3;
  constexpr double kEpsilon = 0.5;
  for (const Packing& packing : {Packing{4, Scales::super_offset}, Packing{8, Scales::block}, kBf16Rows}) {
    const int processors = stream_->device().processors;
    for (const auto& [hidden, inputs] : {std::pair{448, 2048}, std::pair{1024, 8192}, std::pair{4096, 2048},
                                         std::pair{processors * 112, 64}, std::pair{processors * 288, 128}}) {
      constexpr int kNext = 304;
      if (hidden > 4096 && !packing.in_rows()) continue;
      const auto width = static_cast<std::size_t>(hidden);
      const Weights adds(packing, static_cast<int>(width), inputs), next(packing, kNext, static_cast<int>(width));
      const Array<std::uint32_t> add_words(*stream_, adds.words), next_words(*stream_, next.words);
      std::mt19937 random(5);
      std::normal_distribution<float> normal;
      std::vector<float> norm(width), before(kMost * width);
      for (float& x : norm) x = normal(random);
      for (float& x : before) x = normal(random);
      const std::vector<Bf16> in = normal_bf16(kMost * static_cast<std::size_t>(inputs));
      const Array<float> on_norm(*stream_, norm), sums(*stream_, kMost * width), plain(*stream_, kMost * kNext);
      const Array<Bf16> from(*stream_, in), activated(*stream_, kMost * kNext / 2);
      for (const int rows : {9, 16, 17, 32, 33, 64}) {
        if (rows > most_normed_wide_rows(adds.layout)) continue;
        SCOPED_TRACE(testing::Message() << packing.bits << " bits, " << width << " wide, rows " << rows);
        const auto count = static_cast<std::size_t>(rows);
        const Array<float> residual(*stream_, before), out(*stream_, kMost * kNext),
            squares(*stream_, std::vector<float>(kMost * width / 16, kNan));
        const Array<Bf16> narrow(*stream_, std::vector<Bf16>(kMost * width, 0x7fc0));
        FewRowsOp op{.weight = {adds.layout, add_words.constant()},
                     .in = from.constant(),
                     .rows = rows,
                     .out = sums.pointer(),
                     .stride = static_cast<int>(width)};
        multiply_wide_rows(*stream_, space, op);
        op.end = FewRowsOp::End::add;
        op.out = residual.pointer();
        op.norm = on_norm.constant();
        op.narrow = narrow.pointer();
        op.squares_left = squares.pointer();
        multiply_wide_rows(*stream_, space, op);
        FewRowsOp then{.weight = {next.layout, next_words.constant()},
                       .in = narrow.constant(),
                       .rows = rows,
                       .out = plain.pointer(),
                       .stride = kNext};
        multiply_wide_rows(*stream_, space, then);
        then.out = out.pointer();
        then.squares = squares.constant();
        then.width = static_cast<int>(width);
        then.epsilon = kEpsilon;
        multiply_wide_rows(*stream_, space, then);
        then.end = FewRowsOp::End::gate;
        then.narrow = activated.pointer();
        multiply_wide_rows(*stream_, space, then);
        const std::vector<float> added = sums.values(), after = residual.values(), of_next = plain.values(),
                                 got = out.values(), left = squares.values();
        const std::vector<Bf16> narrowed = narrow.values(), gated = activated.values();
        std::vector<double> squared(count);
        for (std::size_t i = 0; i < after.size(); ++i) {
          if (i / width >= count) {
            ASSERT_EQ(after[i], before[i]) << "written beside the rows";
            ASSERT_EQ(narrowed[i], 0x7fc0) << "written beside the rows";
            continue;
          }
          ASSERT_EQ(after[i], before[i] + added[i]) << i;
          ASSERT_EQ(narrowed[i], bf16_from_float(after[i] * norm[i % width])) << i;
          squared[i / width] += static_cast<double>(after[i]) * after[i];
        }
        for (std::size_t i = count * width / 16; i < left.size(); ++i) ASSERT_TRUE(std::isnan(left[i])) << i;
        for (std::size_t i = 0; i < count * kNext; ++i) {
          const double want = of_next[i] / std::sqrt(squared[i / kNext] / static_cast<double>(width) + kEpsilon);
          ASSERT_NEAR(got[i], want, std::abs(want) * 1e-5) << i;
        }
        for (std::size_t i = 0; i < count * kNext / 2; ++i) {
          const std::size_t at = i / (kNext / 2) * kNext + i % (kNext / 2) / 8 * 16 + i % 8;
          const double x = got[at], want = x / (1 + std::exp(-x)) * got[at + 8];
          ASSERT_NEAR(float_from_bf16(gated[i]), want, std::abs(want) * 0x1.1p-8 + 1e-6) << i;
        }
      }
    }
  }
}

/// Blocks tell each other that a part is there by what it is not: any bits may be an input.
TEST_F(WideRows, NoNumberStaysInItsRow) {
  const Array<float> space = make_wide_space(*stream_);
  for (const Packing& packing : {Packing{4, Scales::super_offset}, Packing{8, Scales::block}, kBf16Rows}) {
    SCOPED_TRACE(packing.bits);
    constexpr std::size_t kOutputs = 300, kInputs = 4096, kRows = 20, kBad = 7;
    const Weights weights(packing, kOutputs, kInputs);
    const Array<std::uint32_t> words(*stream_, weights.words);
    std::vector<Bf16> in = normal_bf16(kRows * kInputs);
    const auto multiplied = [&] {
      const Array<Bf16> from(*stream_, in);
      const Array<float> out(*stream_, kRows * kOutputs);
      multiply_wide_rows(*stream_, space,
                         {.weight = {weights.layout, words.constant()},
                          .in = from.constant(),
                          .rows = kRows,
                          .out = out.pointer(),
                          .stride = kOutputs});
      return out.values();
    };
    const std::vector<float> want = multiplied();
    for (const Bf16 bits : {0xffff, 0x7fff, 0xff80, 0x7f81}) {
      std::fill_n(in.begin() + kBad * kInputs, kInputs, bits);
      const std::vector<float> got = multiplied();
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (i / kOutputs == kBad) {
          ASSERT_FALSE(std::isfinite(got[i])) << i;
        } else {
          ASSERT_EQ(got[i], want[i]) << i;
        }
      }
    }
  }
}

TEST_F(WideRows, GiveTheSameInAGraph) {
  const Array<float> space = make_wide_space(*stream_);
  const std::vector<std::uint16_t> weight = normals(4096 * 1024), in = normals(40 * 1024);
  const Array<std::uint32_t> on_weight(*stream_, words_of(weight));
  const Array<std::uint16_t> on_in(*stream_, in);
  Array<float> out(*stream_, std::size_t{40} * 4096);
  const FewRowsOp op{.weight = {{kBf16Rows, 4096, 1024}, on_weight.constant()},
                     .in = on_in.constant(),
                     .rows = 40,
                     .out = out.pointer(),
                     .stride = 4096};
  multiply_wide_rows(*stream_, space, op);
  const std::vector<float> want = out.values();
  Graph graph(*stream_, [&] {
    for (int i = 0; i < 5; ++i) multiply_wide_rows(*stream_, space, op);
  });
  for (int run = 0; run < 3; ++run) {
    out.memory().fill(std::byte{0xff});
    graph.run();
    EXPECT_TRUE(same_bits(out.values(), want)) << "run " << run;
  }
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
