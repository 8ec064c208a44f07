// Packed weights hold what ggml reads from the same blocks.
#include "glimpse/exec/cuda/pack.h"

#include <ggml.h>
#include <gtest/gtest.h>

#include "tests/exec/quantised.h"
#include "tests/support/packed_values.h"

namespace glimpse::exec::cuda {
namespace {

constexpr ggml_type kTypes[] = {GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1,
                                GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K};

void expect_values(const Quantised& of, const kernels::cuda::PackedLayout& layout, int at,
                   std::span<const std::uint32_t> words) {
  const auto inputs = static_cast<int>(of.tensor.shape[0]);
  for (int output = 0; output < of.tensor.shape[1]; ++output) {
    for (int input = 0; input < inputs; ++input) {
      const float want = of.read[static_cast<std::size_t>(output) * static_cast<std::size_t>(inputs) +
                                 static_cast<std::size_t>(input)];
      ASSERT_NEAR(test::packed_value(layout, words, at + output, input), want, 1e-6 * std::abs(want) + 2e-6)
          << output << ", " << input;
    }
  }
}

TEST(Pack, HoldsWhatGgmlReads) {
  for (const ggml_type type : kTypes) {
    SCOPED_TRACE(ggml_type_name(type));
    // Inputs that end inside a super block, where the type has blocks of 32; outputs that end inside a block row.
    const Quantised made(type, 37, ggml_blck_size(type) == 32 ? 576 : 768);
    const auto packing = packing_of(made.tensor);
    ASSERT_TRUE(packing);
    const kernels::cuda::PackedLayout layout{*packing, 37, static_cast<int>(made.tensor.shape[0])};
    std::vector<std::uint32_t> words(layout.words(), 0xdeadbeefU);
    pack({made.tensor, layout, 0, 0, 1}, words);
    pack({made.tensor, layout, 0, 1, 3}, words);
    expect_values(made, layout, 0, words);
  }
}

TEST(Pack, PutsTensorsBehindEachOther) {
  const Quantised first(GGML_TYPE_Q4_K, 32, 512), second(GGML_TYPE_Q4_K, 20, 512);
  const kernels::cuda::PackedLayout layout{*packing_of(first.tensor), 52, 512};
  std::vector<std::uint32_t> words(layout.words());
  pack({second.tensor, layout, 2, 0, 2}, words);
  pack({first.tensor, layout, 0, 0, 2}, words);
  expect_values(first, layout, 0, words);
  expect_values(second, layout, 32, words);
}

TEST(Pack, PutsEightOutputsOfTwoTensorsInTurn) {
  const Quantised gate(GGML_TYPE_Q6_K, 48, 256), up(GGML_TYPE_Q6_K, 48, 256);
  const kernels::cuda::PackedLayout layout{*packing_of(gate.tensor), 96, 256};
  std::vector<std::uint32_t> words(layout.words());
  pack({gate.tensor, layout, 0, 0, 6, &up.tensor}, words);
  for (int output = 0; output < 96; ++output) {
    const Quantised& from = output % 16 < 8 ? gate : up;
    const int row = output / 16 * 8 + output % 8;
    for (int input = 0; input < 256; ++input) {
      const float want = from.read[static_cast<std::size_t>(row * 256 + input)];
      ASSERT_NEAR(test::packed_value(layout, words, output, input), want, 1e-6 * std::abs(want) + 2e-6)
          << output << ", " << input;
    }
  }
}

TEST(Pack, LeavesOtherTypesAlone) {
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q2_K, GGML_TYPE_IQ4_XS}) {
    model::TensorInfo tensor;
    tensor.type = type;
    EXPECT_FALSE(packing_of(tensor)) << ggml_type_name(type);
  }
}

}  // namespace
}  // namespace glimpse::exec::cuda
