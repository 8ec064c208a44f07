// Bytes as f16 against what the cache's rows say.
#include "glimpse/kernels/cuda/widen.h"

#include "device_bed.h"
#include "glimpse/kernels/ref/rows.h"

namespace glimpse::kernels::cuda::test {
namespace {

using WidenTest = CudaTest;

TEST_F(WidenTest, RowsAreTheirBytesTimesTheirScale) {
  for (const OperationsCase& c : cases()) {
    SCOPED_TRACE(c.name);
    OperationsBed bed(c, KvType::q8_0, 17);
    const DeviceBed from(*stream_, bed);
    const KvFormat wide{KvType::f16, bed.of.dim};
    const std::size_t heads = static_cast<std::size_t>(bed.of.kv_heads), sequences = bed.views.size() / heads;
    std::int32_t most = 0;
    for (const HeadView& view : bed.views)
      most = std::max(most, (view.slots + kPageTokens - 1) / kPageTokens * kPageTokens);
    const std::size_t bytes = static_cast<std::size_t>(most / kPageTokens) * wide.page_bytes();
    std::vector<PageId> numbers(static_cast<std::size_t>(most / kPageTokens));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<PageId>(numbers.size() - 1 - i);
    const Array<PageId> pages(*stream_, numbers);
    // Every sequence has the same room, one after the other.
    Array<std::byte> k(*stream_, heads * bytes), v(*stream_, heads * bytes);
    std::vector<HeadView> views;
    for (std::size_t i = 0; i < bed.views.size(); ++i) {
      const std::size_t at = i % heads * bytes;
      views.push_back(
          {k.pointer().raw() + at, v.pointer().raw() + at, pages.constant().raw(), nullptr, bed.views[i].slots});
    }
    const Array<HeadView> to(*stream_, views);
    for (std::size_t sequence = 0; sequence < sequences; ++sequence) {
      k.memory().fill(std::byte{0xff});
      widen(*stream_, {from.cache(),
                       {wide, to.constant(), static_cast<int>(sequences), bed.of.kv_heads},
                       static_cast<std::int32_t>(sequence),
                       most});
      std::vector<std::byte> got_k = k.values(), got_v = v.values();
      for (std::size_t head = 0; head < heads; ++head) {
        HeadView own = bed.views[sequence * heads + head];
        const HeadView widened{got_k.data() + head * bytes, got_v.data() + head * bytes, numbers.data(), nullptr,
                               own.slots};
        for (std::int32_t slot = 0; slot < own.slots; slot += 1 + slot / 64) {
          for (std::byte* HeadView::*plane : {&HeadView::k_plane, &HeadView::v_plane}) {
            const std::vector<double> want = ref::read_row(bed.format, own, own.*plane, slot);
            const std::vector<double> got = ref::read_row(wide, widened, widened.*plane, slot);
            for (std::size_t i = 0; i < want.size(); ++i) {
              const float value = static_cast<float>(want[i]);
              ASSERT_EQ(static_cast<float>(got[i]), float_from_f16(f16_from_float(value))) << slot << " " << i;
            }
          }
        }
      }
      if (sequence == 3) break;  // of two hundred
    }
  }
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
