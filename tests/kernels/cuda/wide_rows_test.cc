// Products of bf16 weights with up to 64 rows against plain loops.
#include "glimpse/kernels/cuda/wide_rows.h"

#include "device_bed.h"
#include "glimpse/base/dtype.h"

namespace glimpse::kernels::cuda::test {
namespace {

class WideRows : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (stream_ != nullptr && !has_wide_rows(*stream_, 64)) GTEST_SKIP() << "no Hopper";
  }
  std::vector<std::uint16_t> normals(std::size_t count) {
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> made(count);
    for (std::uint16_t& x : made) x = bf16_from_float(normal(random_));
    return made;
  }
  std::mt19937 random_{7};
};

struct WideCase {
  int outputs, inputs;
};

TEST_F(WideRows, MultiplyWeights) {
  WideSpace space = make_wide_space(*stream_);
  for (const WideCase& c : {WideCase{128, 64}, WideCase{576, 576}, WideCase{200, 1536}, WideCase{6144, 4096},
                            WideCase{1000, 14336}, WideCase{40000, 128}}) {
    const std::vector<std::uint16_t> weight = normals(static_cast<std::size_t>(c.outputs) *
                                                      static_cast<std::size_t>(c.inputs)),
                                     in = normals(64 * static_cast<std::size_t>(c.inputs));
    const Array<std::uint16_t> on_weight(*stream_, weight), on_in(*stream_, in);
    const int stride = c.outputs + 3;
    std::vector<float> of_all;
    for (const int rows : {64, 1, 9, 16, 17, 32, 33, 48, 50}) {
      SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(c.outputs) + " x " + std::to_string(c.inputs));
      const std::size_t size = 64 * static_cast<std::size_t>(stride);
      const Array<float> out(*stream_, std::vector<float>(size, kNan)), again(*stream_, std::vector<float>(size, kNan));
      const WideRowsOp op{on_weight.constant(), c.outputs, c.inputs, on_in.constant(), rows, out.pointer(), stride};
      multiply_wide_rows(*stream_, space, op);
      WideRowsOp second = op;
      second.out = again.pointer();
      multiply_wide_rows(*stream_, space, second);
      const std::vector<float> got = out.values();
      EXPECT_TRUE(same_bits(got, again.values())) << "two runs differ";
      if (rows == 64) of_all = got;
      for (std::size_t row = 0; row < 64; ++row) {
        for (std::size_t output = 0; output < static_cast<std::size_t>(stride); ++output) {
          const float value = got[row * static_cast<std::size_t>(stride) + output];
          if (row >= static_cast<std::size_t>(rows) || output >= static_cast<std::size_t>(c.outputs)) {
            ASSERT_TRUE(std::isnan(value)) << "written beside the result";
            continue;
          }
          ASSERT_EQ(value, of_all[row * static_cast<std::size_t>(stride) + output]) << "other rows change a row";
          if (rows != 64 || (row * 7 + output) % 61 != 0) continue;
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

TEST_F(WideRows, GatePairsOfEight) {
  WideSpace space = make_wide_space(*stream_);
  constexpr std::size_t kOutputs = 400, kInputs = 2048;
  const std::vector<std::uint16_t> weight = normals(kOutputs * kInputs), in = normals(64 * kInputs);
  const Array<std::uint16_t> on_weight(*stream_, weight), on_in(*stream_, in);
  for (const int rows : {9, 40, 64}) {
    SCOPED_TRACE(rows);
    const Array<float> sums(*stream_, static_cast<std::size_t>(rows) * kOutputs);
    const Array<std::uint16_t> gated(*stream_, std::vector<std::uint16_t>(64 * kOutputs / 2, 0x7fc0));
    WideRowsOp op{on_weight.constant(), kOutputs, kInputs, on_in.constant(), rows, sums.pointer(), kOutputs};
    multiply_wide_rows(*stream_, space, op);
    op.out = nullptr;
    op.gated = gated.pointer();
    multiply_wide_rows(*stream_, space, op);
    const std::vector<float> of = sums.values();
    const std::vector<std::uint16_t> got = gated.values();
    for (std::size_t row = 0; row < 64; ++row) {
      for (std::size_t pair = 0; pair < kOutputs / 2; ++pair) {
        const float value = float_from_bf16(got[row * (kOutputs / 2) + pair]);
        if (row >= static_cast<std::size_t>(rows)) {
          ASSERT_TRUE(std::isnan(value)) << "written beside the result";
          continue;
        }
        const std::size_t at = row * kOutputs + pair / 8 * 16 + pair % 8;
        const double x = of[at], want = x / (1 + std::exp(-x)) * of[at + 8];
        ASSERT_NEAR(value, want, std::abs(want) * 0x1.1p-8 + 1e-6) << row << " " << pair;
      }
    }
  }
}

TEST_F(WideRows, GiveTheSameInAGraph) {
  WideSpace space = make_wide_space(*stream_);
  const std::vector<std::uint16_t> weight = normals(4096 * 1024), in = normals(40 * 1024);
  const Array<std::uint16_t> on_weight(*stream_, weight), on_in(*stream_, in);
  Array<float> out(*stream_, std::size_t{40} * 4096);
  const WideRowsOp op{on_weight.constant(), 4096, 1024, on_in.constant(), 40, out.pointer(), 4096};
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
