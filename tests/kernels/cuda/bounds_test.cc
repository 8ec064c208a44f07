// Bounds of pages on the device, made and searched, against the reference; and the sets that are chosen from them.
#include "device_bed.h"

namespace glimpse::kernels::cuda::test {
namespace {

/// Sums of up to 256 products, all of one sign.
constexpr double kNearBounds = 3e-4;

class PageBounds : public CudaTest {
 protected:
  std::vector<std::byte> summarised(const OperationsBed& bed) {
    const DeviceBed on(*stream_, bed);
    const Array<PageRange> ranges(*stream_, kernels::test::page_ranges(bed));
    const Array<std::byte> bounds(*stream_, kernels::test::no_bounds(bed));
    operations_->summarise({on.cache(),
                            ranges.constant(),
                            static_cast<int>(ranges.size()),
                            kernels::test::most_pages(bed),
                            {bounds.pointer(), summary_type(bed.format.type)}});
    return bounds.values();
  }

  std::vector<float> searched(const OperationsBed& bed, const std::vector<std::byte>& bounds) {
    const DeviceBed on(*stream_, bed);
    const Array<Search> searches(*stream_, kernels::test::all_searches(bed));
    const Array<std::byte> device_bounds(*stream_, bounds);
    const Array<float> scores(*stream_, std::vector<float>(bed.queries() * bed.stride, kNan));
    operations_->search({on.cache(),
                         on.rows(),
                         on.q(),
                         bed.of.group,
                         0.125F,
                         {device_bounds.pointer(), summary_type(bed.format.type)},
                         searches.constant(),
                         static_cast<int>(searches.size()),
                         kernels::test::most_pages(bed),
                         {scores.pointer(), nullptr, bed.stride}});
    return scores.values();
  }

  void expect_as_reference(const OperationsBed& bed) {
    std::vector<std::byte> want = summarise_on_host(reference_, bed);
    ASSERT_TRUE(summarised(bed) == want);
    const std::vector<float> got = searched(bed, want);
    expect_near(got, search_on_host(reference_, bed, want), kNearBounds);
    EXPECT_TRUE(same_bits(searched(bed, want), got)) << "two runs differ";
  }
};

TEST_F(PageBounds, EqualTheReferenceAndNothingElseIsWritten) {
  each_case([&](const OperationsBed& bed) {
    if (bed.of.freed == 0) expect_as_reference(bed);
  });
}

TEST_F(PageBounds, EveryDimensionAndLargeGroups) {
  for (const int dim : {64, 96, 128, 256}) {
    for (const int group : {1, 4, 7, 16, 33}) {
      SCOPED_TRACE("dim " + std::to_string(dim) + ", group " + std::to_string(group));
      for (const KvType type : {KvType::bf16, KvType::q8_0}) {
        expect_as_reference(
            {{.name = "", .dim = dim, .group = group, .lengths = {1000, 37, 256}, .behind = {1, 2}}, type, 23});
      }
    }
  }
}

TEST_F(PageBounds, FullSize) {
  expect_as_reference({{.name = "", .dim = 128, .group = 4, .lengths = {131072, 70001}}, KvType::bf16, 7});
}

/// Summarised, searched and chosen in one graph, as a layer does it.
TEST_F(PageBounds, ALayerInAGraph) {
  OperationsBed bed({.name = "", .dim = 128, .group = 4, .lengths = {5000, 777}}, KvType::bf16, 11);
  std::vector<std::byte> bounds = summarise_on_host(reference_, bed);
  std::vector<Search> searches;
  std::vector<Choice> choices;
  for (const RowHead at : bed.row_heads) {
    const std::int32_t seen = bed.seen(static_cast<std::size_t>(at.row));
    const std::int32_t tail = seen / kPageTokens - 2;
    searches.push_back({at.row, at.head, 1, 1, tail});
    choices.push_back({.row = at.row,
                       .head = at.head,
                       .set = static_cast<std::int32_t>(choices.size()),
                       .pooling = Pooling::max_score,
                       .wanted = 20,
                       .block = kPageTokens,
                       .by_unit = 1,
                       .head_units = 1,
                       .tail_units = tail});
  }
  const auto capacity = static_cast<std::int32_t>(bed.stride);
  const int count = static_cast<int>(choices.size());
  std::vector<std::int32_t> want_slots(choices.size() * bed.stride, -7), want_count(choices.size());
  std::vector<float> scores(bed.queries() * bed.stride, 0), lse(bed.queries(), 0);
  const ScoreTable<Place::host> table{scores.data(), lse.data(), bed.stride};
  reference_.search({bed.cache(),
                     bed.row_table(),
                     bed.q.data(),
                     bed.of.group,
                     0.125F,
                     {bounds.data(), KvType::bf16},
                     searches.data(),
                     count,
                     most_pages(bed),
                     table});
  reference_.select({bed.cache(),
                     bed.row_table(),
                     bed.of.group,
                     table,
                     choices.data(),
                     count,
                     {want_slots.data(), want_count.data(), capacity, count}});

  const DeviceBed on(*stream_, bed);
  const Array<PageRange> ranges(*stream_, page_ranges(bed));
  const Array<Search> device_searches(*stream_, searches);
  const Array<Choice> device_choices(*stream_, choices);
  const Array<std::byte> device_bounds(*stream_, no_bounds(bed));
  const Array<float> device_scores(*stream_, scores.size()), device_lse(*stream_, lse.size());
  const Array<std::int32_t> slots(*stream_, std::vector<std::int32_t>(want_slots.size(), -7));
  const Array<std::int32_t> counts(*stream_, want_count.size());
  const SummaryTable<Place::device> summaries{device_bounds.pointer(), KvType::bf16};
  const ScoreTable<Place::device> device_table{device_scores.pointer(), device_lse.pointer(), bed.stride};
  const auto layer = [&] {
    operations_->summarise(
        {on.cache(), ranges.constant(), static_cast<int>(ranges.size()), most_pages(bed), summaries});
    operations_->search({on.cache(), on.rows(), on.q(), bed.of.group, 0.125F, summaries, device_searches.constant(),
                         count, most_pages(bed), device_table});
    operations_->select({on.cache(),
                         on.rows(),
                         bed.of.group,
                         device_table,
                         device_choices.constant(),
                         count,
                         {slots.pointer(), counts.pointer(), capacity, count}});
  };
  layer();
  EXPECT_EQ(counts.values(), want_count);
  EXPECT_EQ(slots.values(), want_slots);
  Graph graph(*stream_, layer);
  graph.run();
  EXPECT_EQ(counts.values(), want_count);
  EXPECT_EQ(slots.values(), want_slots);
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
