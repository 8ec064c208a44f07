// Sets that are merged by rank, against plain loops.
#include "device_bed.h"
#include "glimpse/kernels/cuda/parts.h"

namespace glimpse::kernels::cuda::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class RankMerges : public CudaTest {};

struct Merged {
  std::vector<RankMerge> merges;
  std::vector<float> scores;  ///< [R, H, stride]
  std::vector<std::int32_t> slots, count;
  std::vector<std::vector<float>> want;  ///< of each merge: its units' values
  int most = 0;
};

/// One row's merge: what each query head chose, and the number of each unit.
void add_merge(const OperationsBed& bed, std::size_t row, std::int32_t block, std::int32_t wanted, Merged& made) {
  const int heads = bed.of.kv_heads * bed.of.group;
  const std::int32_t slots = bed.seen(row), units = (slots + block - 1) / block;
  RankMerge merge{.row = static_cast<std::int32_t>(row), .head = static_cast<std::int32_t>(row) % bed.of.kv_heads};
  merge.block = block;
  merge.head_units = std::min(1, units - 1);
  merge.tail_units = std::max(merge.head_units, units - 2);
  merge.first_list = static_cast<std::int32_t>(made.count.size());
  merge.lists = heads;
  merge.wanted = wanted;
  std::vector<float> want(static_cast<std::size_t>(units), -kInfinity);
  for (int query = 0; query < heads; ++query) {
    const float* const of =
        made.scores.data() + (row * static_cast<std::size_t>(heads) + static_cast<std::size_t>(query)) * bed.stride;
    const auto value = [&](std::int32_t unit) {
      return *std::max_element(of + unit * block, of + std::min(slots, (unit + 1) * block));
    };
    std::vector<std::int32_t> order;
    for (std::int32_t unit = merge.head_units; unit < merge.tail_units; ++unit) {
      if (value(unit) > -kInfinity) order.push_back(unit);
    }
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return value(a) > value(b); });
    order.resize(std::min(order.size(), static_cast<std::size_t>(wanted)));
    for (std::size_t rank = 0; rank < order.size(); ++rank) {
      float& best = want[static_cast<std::size_t>(order[rank])];
      best =
          std::max(best, -static_cast<float>(rank * static_cast<std::size_t>(heads) + static_cast<std::size_t>(query)));
    }
    for (std::int32_t unit = 0; unit < units; ++unit) {
      if (unit < merge.head_units || unit >= merge.tail_units) order.push_back(unit);
    }
    std::sort(order.begin(), order.end());
    const std::size_t first = made.slots.size();
    made.slots.resize(first + bed.stride, -1);
    std::int32_t count = 0;
    for (const std::int32_t unit : order) {
      for (std::int32_t slot = unit * block; slot < std::min(slots, (unit + 1) * block); ++slot) {
        made.slots[first + static_cast<std::size_t>(count++)] = slot;
      }
    }
    made.count.push_back(count == slots ? kEverything : count);
  }
  made.merges.push_back(merge);
  made.want.push_back(std::move(want));
}

TEST_F(RankMerges, NumberUnitsByTheirBestRank) {
  for (const OperationsCase& c :
       {OperationsCase{.name = "a batch", .kv_heads = 3, .group = 4, .lengths = {700, 90, 17, 1}},
        OperationsCase{.name = "long", .kv_heads = 2, .group = 2, .lengths = {9001}}}) {
    for (const std::int32_t block : {1, 16}) {
      for (const std::int32_t wanted : {0, 1, 40, 5000}) {
        SCOPED_TRACE(c.name + ", " + std::to_string(wanted) + " blocks of " + std::to_string(block));
        OperationsBed bed(c, KvType::bf16, 5);
        Merged all;
        bed.fill(all.scores, bed.queries() * bed.stride);
        for (std::size_t i = 0; i < all.scores.size(); ++i) {
          float& score = all.scores[i];
          score = i % 97 == 13 ? -kInfinity : std::round(score * 30);  // freed slots, and ties
        }
        for (std::size_t row = 0; row < bed.rows(); ++row) add_merge(bed, row, block, wanted, all);
        const DeviceBed on(*stream_, bed);
        const Array<RankMerge> merges(*stream_, all.merges);
        const Array<float> scores(*stream_, all.scores);
        const Array<std::int32_t> slots(*stream_, all.slots), count(*stream_, all.count);
        const int lists = bed.of.kv_heads * bed.of.group;
        const Array<std::uint64_t> keys(*stream_,
                                        all.merges.size() * static_cast<std::size_t>(lists) * rank_room(wanted) + 1);
        const Array<float> values(
            *stream_, std::vector<float>(bed.rows() * static_cast<std::size_t>(bed.of.kv_heads) * bed.stride, kNan));
        RankMergeOp op{on.cache(), on.rows(), bed.of.group, merges.constant(), static_cast<int>(all.merges.size())};
        op.lists = lists;
        op.most = wanted;
        op.sets = {slots.pointer(), count.pointer(), static_cast<std::int32_t>(bed.stride),
                   static_cast<int>(all.count.size())};
        op.scores = {scores.pointer(), nullptr, bed.stride};
        op.keys = keys.pointer();
        op.values = values.pointer();
        op.stride = bed.stride;
        merge_ranks(*stream_, op);
        const std::vector<float> got = values.values();
        for (std::size_t i = 0; i < all.merges.size(); ++i) {
          const RankMerge& merge = all.merges[i];
          const std::size_t at = static_cast<std::size_t>(merge.row * bed.of.kv_heads + merge.head) * bed.stride;
          for (std::size_t unit = 0; unit < all.want[i].size(); ++unit) {
            ASSERT_EQ(got[at + unit], all.want[i][unit]) << "row " << merge.row << ", unit " << unit;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
