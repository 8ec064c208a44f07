// Tiles of a prompt that read a part of what lies before them, against the reference.
#include "glimpse/kernels/cuda/tiles.h"

#include "device_bed.h"

namespace glimpse::kernels::cuda::test {
namespace {

using kernels::test::prompt_bed;
using kernels::test::prompt_case;

constexpr double kWeights = 4e-3;  ///< as of any prompt's rows (prefill_test.cc)

class Tiles : public CudaTest {
 protected:
  /// Tiles of a prompt's rows, each head of which reads something else.
  struct Made {
    std::vector<PromptRows> tiles;
    std::vector<TileRead> reads;
    std::vector<std::int32_t> slots, count;
    std::int32_t capacity = 0;
  };
  static Made some_tiles(OperationsBed& bed, std::int32_t rows) {
    Made made;
    made.capacity = static_cast<std::int32_t>(bed.stride);
    const auto all = static_cast<std::int32_t>(bed.rows());
    for (std::int32_t first = 0; first < all; first += rows) {
      const std::int32_t behind = bed.behind.front() - first;
      const std::int32_t before = bed.of.lengths[0] - behind;
      made.tiles.push_back({0, first, std::min(rows, all - first), behind});
      for (int head = 0; head < bed.of.kv_heads; ++head) {
        TileRead read;
        const auto kind = (made.reads.size() + static_cast<std::size_t>(bed.below(2))) % 4;
        if (kind == 0 && before > 1) {
          read.sink = bed.below(std::min(before, 20));
          read.local = read.sink + bed.below(before - read.sink + 1);
        } else if (kind != 1) {
          read.set = static_cast<std::int32_t>(made.count.size());
          std::vector<std::int32_t> set;
          const int one_of = 1 + bed.below(5);
          for (std::int32_t slot = 0; slot < before; ++slot) {
            if (bed.below(one_of) == 0) set.push_back(slot);
          }
          made.count.push_back(bed.below(6) == 0 ? kEverything : static_cast<std::int32_t>(set.size()));
          set.resize(bed.stride, -1);
          made.slots.insert(made.slots.end(), set.begin(), set.end());
        }
        made.reads.push_back(read);
      }
    }
    return made;
  }

  std::vector<float> on_device(const OperationsBed& bed, const Made& made, std::int32_t rows) {
    const DeviceBed on(*stream_, bed);
    const Array<float> out(*stream_, std::vector<float>(bed.q.size(), kNan));
    const Array<PromptRows> tiles(*stream_, made.tiles);
    const Array<TileRead> reads(*stream_, made.reads);
    const Array<std::int32_t> slots(*stream_, made.slots), count(*stream_, made.count);
    attend_tiles(*stream_, {on.cache(),
                            tiles.constant(),
                            static_cast<int>(made.tiles.size()),
                            rows,
                            reads.constant(),
                            {slots.pointer(), count.pointer(), made.capacity, static_cast<int>(made.count.size())},
                            on.q(),
                            bed.of.group,
                            0.125F,
                            out.pointer()});
    return out.values();
  }

  /// Of some rows: every `step`th.
  void expect_reference(OperationsBed& bed, std::int32_t rows, std::size_t step = 1) {
    const Made made = some_tiles(bed, rows);
    const std::vector<float> got = on_device(bed, made, rows);
    const auto heads = static_cast<std::size_t>(bed.of.kv_heads);
    const std::size_t width = bed.q.size() / bed.rows();
    for (std::size_t row = 0; row < bed.rows(); row += step) {
      const std::size_t tile = row / static_cast<std::size_t>(rows);
      const std::int32_t seen = bed.seen(row);
      const std::int32_t before = bed.of.lengths[0] - made.tiles[tile].behind;
      std::vector<Read> reads(heads);
      std::vector<std::int32_t> slots(heads * bed.stride), count(heads);
      for (std::size_t head = 0; head < heads; ++head) {
        const TileRead& read = made.reads[tile * heads + head];
        reads[head] = {.kind = Read::Kind::sets, .set = static_cast<std::int32_t>(head)};
        std::vector<char> in(static_cast<std::size_t>(seen), 0);
        std::fill(in.begin() + before, in.end(), 1);
        if (read.set < 0) {
          std::fill(in.begin(), in.begin() + read.sink, 1);
          std::fill(in.begin() + read.local, in.end(), 1);
        } else if (made.count[static_cast<std::size_t>(read.set)] == kEverything) {
          std::fill(in.begin(), in.end(), 1);
        } else {
          const auto from = made.slots.begin() + read.set * static_cast<std::ptrdiff_t>(bed.stride);
          std::for_each(from, from + made.count[static_cast<std::size_t>(read.set)],
                        [&](std::int32_t slot) { in[static_cast<std::size_t>(slot)] = 1; });
        }
        for (std::int32_t slot = 0; slot < seen; ++slot) {
          if (in[static_cast<std::size_t>(slot)] != 0) {
            slots[head * bed.stride + static_cast<std::size_t>(count[head]++)] = slot;
          }
        }
      }
      std::vector<float> want(width);
      const std::int32_t sequence = 0, behind = bed.behind[row];
      reference_.attend({bed.cache(),
                         {&sequence, &behind, 1},
                         bed.q.data() + row * width,
                         bed.of.group,
                         0.125F,
                         reads.data(),
                         {slots.data(), count.data(), static_cast<std::int32_t>(bed.stride), static_cast<int>(heads)},
                         want.data()});
      const auto first = got.begin() + static_cast<std::ptrdiff_t>(row * width);
      SCOPED_TRACE("row " + std::to_string(row));
      expect_near({first, first + static_cast<std::ptrdiff_t>(width)}, want, kWeights);
      if (HasFatalFailure()) return;
    }
    EXPECT_TRUE(same_bits(on_device(bed, made, rows), got)) << "two runs differ";
  }
};

TEST_F(Tiles, EqualTheReference) {
  for (const KvType type : {KvType::bf16, KvType::f16}) {
    for (const int dim : {64, 96, 128, 256}) {
      for (const auto& [group, tile] : {std::pair{1, 128}, {4, 32}, {3, 42}, {7, 18}, {4, 70}, {17, 1}, {2, 5}}) {
        if (type == KvType::f16 && group != 4) continue;
        for (const auto& [length, rows] : {std::pair{500, 200}, {90, 90}, {1, 1}}) {
          for (const double freed : {0.0, 0.2}) {
            OperationsCase c = prompt_case(dim, group, length, rows);
            c.freed = freed;
            SCOPED_TRACE(std::string(name(type)) + ", " + c.name + ", tiles of " + std::to_string(tile) +
                         (freed > 0 ? ", some freed" : ""));
            OperationsBed bed = prompt_bed(c, type, 17);
            expect_reference(bed, tile, 37);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_F(Tiles, FullSize) {
  for (const auto& [dim, group] : {std::pair{128, 4}, {64, 8}}) {
    OperationsCase c = prompt_case(dim, group, 30000, 1024);
    SCOPED_TRACE(c.name);
    OperationsBed bed = prompt_bed(c, KvType::bf16, 3);
    expect_reference(bed, 128 / group, 509);
  }
}

TEST_F(Tiles, SumsBeforeThem) {
  if (!has_tile_sums(*stream_, 128)) GTEST_SKIP() << "this device uses column_sums";
  for (const KvType type : {KvType::bf16, KvType::f16}) {
    for (const auto& [dim, group, tile, length, rows] : {std::tuple{128, 4, 32, 900, 200},
                                                         {64, 4, 32, 900, 200},
                                                         {128, 3, 42, 333, 100},
                                                         {64, 7, 5, 170, 20},
                                                         {128, 1, 128, 1400, 300},
                                                         {128, 4, 32, 9001, 64}}) {
      const OperationsCase c = prompt_case(dim, group, length, rows);
      SCOPED_TRACE(std::string(name(type)) + ", " + c.name);
      OperationsBed bed = prompt_bed(c, type, 5);
      std::vector<float> lse = kernels::test::prompt_lse_on_host(reference_, bed);
      std::vector<PromptRows> tiles;
      for (std::int32_t first = 0; first < rows; first += tile) {
        tiles.push_back({0, first, std::min(tile, rows - first), bed.behind.front() - first});
      }
      const auto kv_heads = static_cast<std::size_t>(c.kv_heads);
      std::vector<float> want(tiles.size() * kv_heads * bed.stride, kNan);
      reference_.column_sums({bed.cache(), tiles.data(), static_cast<int>(tiles.size()), bed.q.data(), lse.data(),
                              group, 0.125F, bed.stride, want.data()});
      const DeviceBed on(*stream_, bed);
      const Array<PromptRows> device_tiles(*stream_, tiles);
      const Array<float> device_lse(*stream_, lse);
      const Array<float> sums(*stream_, std::vector<float>(want.size() * kTileSumParts, kNan));
      sum_tiles(*stream_, {on.cache(), device_tiles.constant(), static_cast<int>(tiles.size()), on.q(),
                           device_lse.constant(), group, 0.125F, sums.pointer(), bed.stride});
      const std::vector<float> got = sums.values();
      for (std::size_t i = 0; i < tiles.size() * kv_heads; ++i) {
        const std::int32_t before = length - tiles[i / kv_heads].behind;
        for (std::size_t slot = 0; slot < bed.stride; ++slot) {
          const float* const parts = got.data() + i * kTileSumParts * bed.stride + slot;
          if (static_cast<std::int32_t>(slot) >= before) {
            ASSERT_TRUE(std::isnan(parts[0]) && std::isnan(parts[bed.stride])) << "slot " << slot;
            continue;
          }
          const float sum = want[i * bed.stride + slot];
          ASSERT_NEAR(parts[0] + parts[bed.stride], sum, 1e-4 * (1 + sum))
              << "tile and head " << i << ", slot " << slot;
        }
      }
    }
  }
}

TEST_F(Tiles, SumsOfRows) {
  if (!has_tile_sums(*stream_, 128)) GTEST_SKIP() << "this device uses prefill";
  for (const KvType type : {KvType::bf16, KvType::f16}) {
    for (const auto& [dim, group, length, rows] : {std::tuple{128, 4, 900, 200},
                                                   {64, 4, 900, 900},
                                                   {128, 3, 333, 100},
                                                   {64, 7, 170, 20},
                                                   {128, 1, 1, 1},
                                                   {128, 4, 9001, 64},
                                                   {64, 1, 320, 160}}) {
      const OperationsCase c = prompt_case(dim, group, length, rows);
      SCOPED_TRACE(std::string(name(type)) + ", " + c.name);
      const OperationsBed bed = prompt_bed(c, type, 5);
      const std::vector<float> want = kernels::test::prompt_lse_on_host(reference_, bed);
      const DeviceBed on(*stream_, bed);
      const Array<float> lse(*stream_, std::vector<float>(want.size(), kNan));
      sum_rows(*stream_, {on.cache(), kernels::test::prompt_of(bed), on.q(), group, 0.125F, lse.pointer()});
      expect_near(lse.values(), want, 1e-4);
    }
  }
}

TEST_F(Tiles, MeanQueries) {
  for (const auto& [dim, group, rows] : {std::tuple{64, 4, 32}, {128, 1, 7}, {256, 5, 40}}) {
    const OperationsBed bed(prompt_case(dim, group, 90, 90), KvType::bf16, 3);
    std::vector<PromptRows> tiles;
    std::vector<float> want;
    for (std::int32_t first = 0; first < 90; first += rows) {
      tiles.push_back({0, first, std::min(rows, 90 - first), 90 - first});
      for (int head = 0; head < bed.of.kv_heads; ++head) {
        for (std::size_t i = 0; i < bed.dim(); ++i) {
          double sum = 0;
          for (std::int32_t row = first; row < first + tiles.back().rows; ++row) {
            for (int j = 0; j < group; ++j) {
              const auto query = static_cast<std::size_t>((row * bed.of.kv_heads + head) * group + j);
              sum += bed.q[query * bed.dim() + i];
            }
          }
          want.push_back(static_cast<float>(sum / (tiles.back().rows * group)));
        }
      }
    }
    const DeviceBed on(*stream_, bed);
    const Array<PromptRows> device_tiles(*stream_, tiles);
    const Array<float> out(*stream_, want.size());
    mean_queries(*stream_, {device_tiles.constant(), static_cast<int>(tiles.size()), on.q(), bed.of.kv_heads, group,
                            dim, out.pointer()});
    expect_near(out.values(), want, 1e-5);
  }
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
