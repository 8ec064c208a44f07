// A prompt's rows on a GPU against the reference.
#include "device_bed.h"

namespace glimpse::kernels::cuda::test {
namespace {

using kernels::test::prefill_on_host;
using kernels::test::prompt_bed;
using kernels::test::prompt_case;
using kernels::test::prompt_of;

/// Weights are 16 bits wide: what that leaves of a mean of normal numbers.
constexpr double kWeights = 4e-3;

class Prefill : public CudaTest {
 protected:
  std::vector<float> on_device(const OperationsBed& bed) {
    const DeviceBed on(*stream_, bed);
    const Array<float> out(*stream_, std::vector<float>(bed.q.size(), kNan));
    operations_->prefill({on.cache(), prompt_of(bed), on.q(), bed.of.group, 0.125F, out.pointer()});
    return out.values();
  }
};

TEST_F(Prefill, EqualsTheReference) {
  for (const KvType type : {KvType::bf16, KvType::f16}) {
    for (const OperationsCase& c : kernels::test::prompt_cases()) {
      SCOPED_TRACE(std::string(name(type)) + ", " + c.name);
      const OperationsBed bed = prompt_bed(c, type, 17);
      const std::vector<float> got = on_device(bed);
      expect_near(got, prefill_on_host(reference_, bed), kWeights);
      EXPECT_TRUE(same_bits(on_device(bed), got)) << "two runs differ";
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(Prefill, FullSize) {
  // The first and the last row of a chunk behind many tokens, each against the reference.
  OperationsBed bed = prompt_bed(prompt_case(128, 4, 40000, 1024), KvType::bf16, 3);
  const std::vector<float> got = on_device(bed);
  const std::size_t width = bed.q.size() / bed.rows();
  for (const std::size_t row : {std::size_t{0}, std::size_t{511}, bed.rows() - 1}) {
    std::vector<float> want(width);
    const std::int32_t behind = bed.behind[row];
    reference_.prefill({bed.cache(), {0, 0, 1, behind}, bed.q.data() + row * width, 4, 0.125F, want.data()});
    const auto first = got.begin() + static_cast<std::ptrdiff_t>(row * width);
    expect_near({first, first + static_cast<std::ptrdiff_t>(width)}, want, kWeights);
  }
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
