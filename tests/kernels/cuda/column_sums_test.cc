// What rows gave to each slot, and the log-sum-exps of prompts that it is made from, on the device against the
// reference.
#include "device_bed.h"

namespace glimpse::kernels::cuda::test {
namespace {

using kernels::test::column_sums_on_host;
using kernels::test::pieces_of;
using kernels::test::prompt_bed;
using kernels::test::prompt_case;
using kernels::test::prompt_lse_on_host;
using kernels::test::prompt_of;

/// Of scores with 16-bit queries, and of up to some hundred rows of 17 query heads.
constexpr double kNearSums = 5e-4;

class ColumnSums : public CudaTest {
 protected:
  std::vector<float> lse(const DeviceBed& on) {
    const Array<float> out(*stream_, on.of.q.size());
    const Array<float> lse(*stream_, std::vector<float>(on.of.queries(), kNan));
    operations_->prefill({on.cache(), prompt_of(on.of), on.q(), on.of.of.group, 0.125F, out.pointer(), lse.pointer()});
    return lse.values();
  }
  std::vector<float> sums(const DeviceBed& on, const std::vector<float>& lse) {
    const Array<PromptRows> pieces(*stream_, pieces_of(on.of));
    const Array<float> device_lse(*stream_, lse);
    const std::size_t count = pieces.size() * static_cast<std::size_t>(on.of.of.kv_heads) * on.of.stride;
    const Array<float> sums(*stream_, std::vector<float>(count, kNan));
    operations_->column_sums({on.cache(), pieces.constant(), static_cast<int>(pieces.size()), on.q(),
                              device_lse.constant(), on.of.of.group, 0.125F, on.of.stride, sums.pointer()});
    return sums.values();
  }
  void expect_as_reference(const OperationsBed& bed) {
    const DeviceBed on(*stream_, bed);
    std::vector<float> want_lse = prompt_lse_on_host(reference_, bed);
    if (bed.format.type != KvType::q8_0) expect_near(lse(on), want_lse, kNearSums);  // which prefill does not take
    const std::vector<float> got = sums(on, want_lse);
    expect_near(got, column_sums_on_host(reference_, bed, want_lse), kNearSums);
    EXPECT_TRUE(same_bits(sums(on, want_lse), got)) << "two runs differ";
  }
};

TEST_F(ColumnSums, EqualTheReference) {
  for (const KvType type : kTypes) {
    for (const OperationsCase& c : kernels::test::prompt_cases()) {
      if (c.group == 3 || c.group == 16 || (type != KvType::bf16 && c.dim > 64)) continue;  // the reference is slow
      SCOPED_TRACE(std::string(name(type)) + ", " + c.name);
      expect_as_reference(prompt_bed(c, type, 19));
      if (HasFatalFailure()) return;
    }
  }
}

/// Few rows lose nothing of their queries in 16 bits.
TEST_F(ColumnSums, FewRowsOfWholeQueries) {
  for (const OperationsCase& c : {prompt_case(128, 4, 700, 1), prompt_case(64, 7, 333, 9), prompt_case(64, 16, 100, 4),
                                  prompt_case(96, 3, 90, 20), prompt_case(256, 4, 200, 8)}) {
    for (const KvType type : kTypes) {
      SCOPED_TRACE(std::string(name(type)) + ", " + c.name);
      const OperationsBed bed(c, type, 29);
      std::vector<float> lse = prompt_lse_on_host(reference_, bed);
      expect_near(sums(DeviceBed(*stream_, bed), lse), column_sums_on_host(reference_, bed, lse), 2e-4);
    }
  }
}

/// A decoded row behind a long context, some of which is freed.
TEST_F(ColumnSums, OneRowOfALongContext) {
  OperationsCase one = prompt_case(128, 4, 70001, 1);
  one.freed = 0.2;
  expect_as_reference(prompt_bed(one, KvType::bf16, 5));
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
