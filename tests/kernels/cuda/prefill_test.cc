// A prompt's rows on a GPU against the reference.
#include "device_bed.h"

namespace glimpse::kernels::cuda::test {
namespace {

using kernels::test::prompt_bed;
using kernels::test::prompt_case;
using kernels::test::prompt_of;

/// Weights are 16 bits wide: what that leaves of a mean of normal numbers.
constexpr double kWeights = 4e-3;
/// Logarithms of sums are made of f32 scores.
constexpr double kLogs = 1e-4;

class Prefill : public CudaTest {
 protected:
  struct Made {
    std::vector<float> out, lse;
  };
  Made on_device(const OperationsBed& bed, bool sums = true) {
    const DeviceBed on(*stream_, bed);
    const Array<float> out(*stream_, std::vector<float>(bed.q.size(), kNan));
    const Array<float> lse(*stream_, std::vector<float>(bed.queries(), kNan));
    operations_->prefill({on.cache(), prompt_of(bed), on.q(), bed.of.group, 0.125F, out.pointer(),
                          sums ? lse.pointer() : Pointer<float, Place::device>()});
    return {out.values(), lse.values()};
  }
  void expect_reference(const OperationsBed& bed) {
    const Made got = on_device(bed);
    Made want{std::vector<float>(bed.q.size(), kNan), std::vector<float>(bed.queries(), kNan)};
    reference_.prefill(
        {bed.cache(), prompt_of(bed), bed.q.data(), bed.of.group, 0.125F, want.out.data(), want.lse.data()});
    expect_near(got.out, want.out, kWeights);
    expect_near(got.lse, want.lse, kLogs);
    EXPECT_TRUE(same_bits(on_device(bed, false).out, got.out)) << "two runs differ";
  }
};

TEST_F(Prefill, EqualsTheReference) {
  for (const KvType type : {KvType::bf16, KvType::f16}) {
    for (const OperationsCase& c : kernels::test::prompt_cases()) {
      SCOPED_TRACE(std::string(name(type)) + ", " + c.name);
      expect_reference(prompt_bed(c, type, 17));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(Prefill, WhereTilesEnd) {
  // Tiles are 128 rows and 32 or 160 slots: one less, all, and one more of both, at a prompt's beginning and behind it.
  for (const int dim : {64, 128}) {
    for (const int group : {1, 4}) {
      for (const std::int32_t rows : {32, 33, 127, 129, 160}) {
        for (const std::int32_t before : {0, 1, 127, 287}) {
          OperationsCase c = prompt_case(dim, group, rows + before, rows);
          c.kv_heads = 1;
          SCOPED_TRACE(c.name);
          expect_reference(prompt_bed(c, KvType::bf16, 5));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(Prefill, FewRowsBehindMany) {
  // Blocks share the keys of few rows.
  for (const double freed : {0.0, 0.2}) {
    for (OperationsCase c : {prompt_case(128, 4, 6000, 20), prompt_case(64, 8, 9001, 3), prompt_case(128, 1, 3000, 130),
                             prompt_case(64, 3, 700, 9), prompt_case(128, 4, 641, 33)}) {
      c.freed = freed;
      SCOPED_TRACE(c.name);
      expect_reference(prompt_bed(c, KvType::bf16, 6));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(Prefill, PiecesOfSeveralSequences) {
  for (const KvType type : {KvType::bf16, KvType::f16}) {
    for (const OperationsCase& c : kernels::test::piece_cases()) {
      SCOPED_TRACE(std::string(name(type)) + ", " + c.name);
      const OperationsBed bed = prompt_bed(c, type, 9);
      const std::vector<PromptRows> pieces = kernels::test::sequence_pieces_of(bed);
      const PromptRows most{.rows = static_cast<std::int32_t>(c.behind.size())};
      const auto count = static_cast<int>(pieces.size());
      const DeviceBed on(*stream_, bed);
      const Array<PromptRows> there(*stream_, pieces);
      const auto made = [&] {
        const Array<float> out(*stream_, std::vector<float>(bed.q.size())),
            lse(*stream_, std::vector<float>(bed.queries()));
        operations_->prefill(
            {on.cache(), most, on.q(), c.group, 0.125F, out.pointer(), lse.pointer(), there.constant(), count});
        return Made{out.values(), lse.values()};
      };
      Made want{std::vector<float>(bed.q.size()), std::vector<float>(bed.queries())};
      reference_.prefill(
          {bed.cache(), most, bed.q.data(), c.group, 0.125F, want.out.data(), want.lse.data(), pieces.data(), count});
      const Made got = made();
      expect_near(got.out, want.out, kWeights);
      expect_near(got.lse, want.lse, kLogs);
      EXPECT_TRUE(same_bits(made().out, got.out)) << "two runs differ";
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(Prefill, FullSize) {
  // Some rows of a chunk behind many tokens, each against the reference.
  for (const auto& [dim, group] : {std::pair{128, 4}, std::pair{128, 8}, std::pair{64, 4}}) {
    for (const double freed : {0.0, 0.1}) {
      OperationsCase c = prompt_case(dim, group, 40000, 1024);
      c.freed = freed;
      SCOPED_TRACE(c.name);
      OperationsBed bed = prompt_bed(c, KvType::bf16, 3);
      const Made got = on_device(bed);
      const std::size_t width = bed.q.size() / bed.rows();
      for (const std::size_t row : {std::size_t{0}, std::size_t{511}, bed.rows() - 1}) {
        std::vector<float> want(width), logs(width / bed.dim());
        const std::int32_t behind = bed.behind[row];
        reference_.prefill(
            {bed.cache(), {0, 0, 1, behind}, bed.q.data() + row * width, group, 0.125F, want.data(), logs.data()});
        const auto part = [&](const std::vector<float>& all, std::size_t size) {
          const auto first = all.begin() + static_cast<std::ptrdiff_t>(row * size);
          return std::vector<float>(first, first + static_cast<std::ptrdiff_t>(size));
        };
        expect_near(part(got.out, width), want, kWeights);
        expect_near(part(got.lse, logs.size()), logs, kLogs);
      }
      EXPECT_TRUE(same_bits(on_device(bed).out, got.out)) << "two runs differ";
    }
  }
}

TEST_F(Prefill, ScoresOfEitherSign) {
  // A negative scale: the softmax's largest score is another one.
  OperationsBed bed = prompt_bed(prompt_case(128, 4, 300, 70), KvType::bf16, 4);
  const DeviceBed on(*stream_, bed);
  const Array<float> out(*stream_, std::vector<float>(bed.q.size(), kNan));
  operations_->prefill({on.cache(), prompt_of(bed), on.q(), 4, -0.125F, out.pointer()});
  std::vector<float> want(bed.q.size());
  reference_.prefill({bed.cache(), prompt_of(bed), bed.q.data(), 4, -0.125F, want.data()});
  expect_near(out.values(), want, kWeights);
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
