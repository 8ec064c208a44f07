// Sets that the device chooses against the reference: every rule, ties, long rows, and the way of devices without
// clusters.
#include <cuda_runtime_api.h>

#include "device_bed.h"
#include "glimpse/kernels/cuda/arguments.h"

namespace glimpse::kernels::cuda::test {
namespace {

struct Sets {
  std::vector<std::int32_t> slots, count;
};

class Select : public CudaTest {
 protected:
  Sets on_host(const OperationsBed& bed, const std::vector<float>& scores, const std::vector<float>& lse,
               const std::vector<Choice>& choices) {
    Sets made{std::vector<std::int32_t>(choices.size() * capacity(bed), -7), std::vector<std::int32_t>(choices.size())};
    // The reference only reads its scores; a table's pointers lead to what an operation may write.
    std::vector<float> own_scores = scores, own_lse = lse;
    reference_.select({bed.cache(),
                       bed.row_table(),
                       bed.of.group,
                       {own_scores.data(), own_lse.data(), bed.stride},
                       choices.data(),
                       static_cast<int>(choices.size()),
                       {made.slots.data(), made.count.data(), static_cast<std::int32_t>(capacity(bed)),
                        static_cast<int>(choices.size())}});
    return made;
  }

  Sets on_device(const OperationsBed& bed, const std::vector<float>& scores, const std::vector<float>& lse,
                 const std::vector<Choice>& choices, bool clusters = true) {
    const DeviceBed on(*stream_, bed);
    const Array<float> device_scores(*stream_, scores), device_lse(*stream_, lse);
    const Array<Choice> device_choices(*stream_, choices);
    const Array<std::int32_t> slots(*stream_, std::vector<std::int32_t>(choices.size() * capacity(bed), -7));
    const Array<std::int32_t> count(*stream_, choices.size());
    const SelectOp<Place::device> op{
        on.cache(),
        on.rows(),
        bed.of.group,
        {device_scores.pointer(), device_lse.pointer(), bed.stride},
        device_choices.constant(),
        static_cast<int>(choices.size()),
        {slots.pointer(), count.pointer(), static_cast<std::int32_t>(capacity(bed)), static_cast<int>(choices.size())},
        std::any_of(choices.begin(), choices.end(),
                    [](const Choice& choice) { return choice.pooling == Pooling::probability_of_mean; })};
    if (clusters) {
      operations_->select(op);
    } else {
      alone(op);
    }
    return {slots.values(), count.values()};
  }

  void expect_equal(const OperationsBed& bed, const std::vector<float>& scores, const std::vector<float>& lse,
                    const std::vector<Choice>& choices) {
    const Sets want = on_host(bed, scores, lse, choices);
    for (const bool clusters : {true, false}) {
      const Sets got = on_device(bed, scores, lse, choices, clusters);
      for (std::size_t c = 0; c < choices.size(); ++c) {
        SCOPED_TRACE("choice " + std::to_string(c) + (clusters ? "" : ", one block"));
        ASSERT_EQ(got.count[c], want.count[c]);
        for (std::size_t i = c * capacity(bed); i < (c + 1) * capacity(bed); ++i) {
          ASSERT_EQ(got.slots[i], want.slots[i]) << "entry " << i - c * capacity(bed);
        }
      }
    }
  }

  std::size_t capacity(const OperationsBed& bed) const { return capacity_ > 0 ? capacity_ : bed.stride; }
  std::size_t capacity_ = 0;

 private:
  /// As on a device without clusters.
  void alone(const SelectOp<Place::device>& op) {
    int shared = 0;
    ASSERT_EQ(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), cudaSuccess);
    const Limits limits{stream_->device().processors, shared, false};
    SelectArguments of{.cache = {.type = op.cache.format.type,
                                 .dim = op.cache.format.dim,
                                 .kv_heads = op.cache.kv_heads,
                                 .rows = op.rows.rows,
                                 .sequences = op.cache.sequences,
                                 .views = op.cache.views.raw(),
                                 .sequence = op.rows.sequence.raw(),
                                 .behind = op.rows.behind.raw()},
                       .group = op.group,
                       .scores = op.scores.scores.raw(),
                       .lse = op.scores.lse.raw(),
                       .stride = op.scores.stride,
                       .choices = op.choices.raw(),
                       .count = op.count,
                       .set_slots = op.sets.slots.raw(),
                       .set_count = op.sets.count.raw(),
                       .set_capacity = op.sets.capacity};
    of.share = (op.scores.stride + 31) / 32 * 32;
    const Array<std::uint32_t> spill(*stream_, static_cast<std::size_t>(op.count) * of.share);
    if (of.share > select_units(limits)) of.spill = spill.pointer().raw();
    const Array<float> sums(*stream_, static_cast<std::size_t>(op.count * op.cache.kv_heads));
    of.mean_lse = sums.pointer().raw();
    launch_weigh_means(of, limits, static_cast<CUstream_st*>(stream_->raw()));
    launch_select(of, limits, static_cast<CUstream_st*>(stream_->raw()));
    stream_->synchronize();
  }
};

/// Scores are what it reads of a cache.
TEST_F(Select, EveryRuleEqualsTheReference) {
  each_case(
      [&](OperationsBed& bed) {
        kernels::test::Scored scored = kernels::test::score_on_host(reference_, bed);
        std::vector<Choice> choices = all_choices(bed);
        if (choices.size() > 200) choices.resize(200);
        expect_equal(bed, scored.scores, scored.lse, choices);
      },
      std::span(kTypes).first(2));
}

/// A bed whose cache nobody reads: one sequence of `slots` slots.
std::unique_ptr<OperationsBed> only_slots(std::int32_t slots, int group) {
  auto bed = std::make_unique<OperationsBed>(OperationsCase{.name = "", .kv_heads = 1, .group = group, .lengths = {16}},
                                             KvType::bf16, 1);
  bed->views[0].slots = slots;
  bed->stride = static_cast<std::size_t>(slots);
  return bed;
}

std::vector<Choice> some_choices(std::int32_t slots) {
  std::vector<Choice> choices;
  for (const Pooling pooling : {Pooling::mean_score, Pooling::max_score, Pooling::mean_probability}) {
    for (const int block : {1, 16, 64}) {
      for (const int share : {50, 10, 1}) {
        const std::int32_t units = (slots + block - 1) / block;
        choices.push_back({.set = static_cast<std::int32_t>(choices.size()),
                           .pooling = pooling,
                           .wanted = std::max(1, units / share),
                           .block = block,
                           .head_units = share == 1 ? 0 : 2,
                           .tail_units = share == 1 ? units : units - 3});
      }
    }
  }
  return choices;
}

TEST_F(Select, TiesGoToTheLowerUnit) {
  for (const std::int32_t slots : {1000, 131072, 131073}) {
    SCOPED_TRACE(std::to_string(slots) + " slots");
    const auto bed = only_slots(slots, 1);
    std::mt19937 random(7);
    std::vector<float> scores(static_cast<std::size_t>(slots));
    for (float& score : scores) score = static_cast<float>(static_cast<int>(random() % 5) - 2);
    for (std::size_t i = 0; i < scores.size(); i += 9) scores[i] = i % 2 == 0 ? 0.0F : -0.0F;
    for (std::size_t i = 4; i < scores.size(); i += 11) scores[i] = -std::numeric_limits<float>::infinity();
    expect_equal(*bed, scores, {3.0F}, some_choices(slots));
  }
}

TEST_F(Select, NotANumberIsNeverChosen) {
  const auto bed = only_slots(100, 1);
  std::vector<float> scores(100, kNan);
  scores[40] = 1;
  scores[70] = -1;
  const Sets got = on_device(*bed, scores, {0.0F}, {{.pooling = Pooling::mean_score, .wanted = 10, .tail_units = 100}});
  EXPECT_EQ(got.count[0], 2);
  EXPECT_EQ(got.slots[0], 40);
  EXPECT_EQ(got.slots[1], 70);
}

TEST_F(Select, LongerThanSharedMemory) {
  const std::int32_t slots = 1000003;
  const auto bed = only_slots(slots, 2);
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> scores(2 * static_cast<std::size_t>(slots));
  for (float& score : scores) score = normal(random);
  std::vector<Choice> choices = some_choices(slots);
  std::erase_if(choices, [](const Choice& c) { return c.pooling == Pooling::mean_probability; });  // near ties
  expect_equal(*bed, scores, {14.0F, 14.0F}, choices);
}

TEST_F(Select, ASetIsCutAtTheCapacity) {
  capacity_ = 16;
  const auto bed = only_slots(100, 1);
  expect_equal(
      *bed, std::vector<float>(100, 0.0F), {0.0F},
      {{.pooling = Pooling::mean_score, .wanted = 50, .head_units = 4, .tail_units = 90},
       {.set = 1, .pooling = Pooling::mean_score, .wanted = 5, .block = 5, .head_units = 0, .tail_units = 20}});
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
