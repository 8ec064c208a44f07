// The batched operations on the CPU against the reference, on one thread and on several, for every instruction set.
#include "glimpse/kernels/cpu/operations.h"

#include <gmock/gmock.h>

#include <thread>

#include "fixture.h"
#include "glimpse/kernels/ref/operations.h"
#include "operations_cases.h"

namespace glimpse::kernels::test {
namespace {

/// Three threads that are started for every run.
class ThreeWorkers final : public Workers {
 public:
  int threads() const override { return 3; }
  void run(const std::function<void(int)>& work) override {
    std::thread one([&] { work(1); });
    std::thread two([&] { work(2); });
    work(0);
    one.join();
    two.join();
  }
};

class OperationsTest : public KernelTest {
 protected:
  /// Calls `body` with each case in each type, and the operations of one and of three threads.
  template <class Body>
  void each(const Body& body) {
    const std::unique_ptr<Operations<Place::host>> alone = make_cpu_operations();
    const std::unique_ptr<Operations<Place::host>> together = make_cpu_operations(&workers_);
    for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
      for (const OperationsCase& c : operations_cases()) {
        SCOPED_TRACE(std::string(name(type)) + ", " + c.name);
        OperationsBed bed(c, type, seed_of_test());
        body(bed, *alone, *together);
        if (HasFatalFailure()) return;
      }
    }
  }

  ref::Operations reference_;

 private:
  ThreeWorkers workers_;
};

void expect_near(const std::vector<float>& got, const std::vector<float>& want, double allowed) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
    ASSERT_NEAR(got[i], want[i], allowed) << "at " << i;
  }
}

/// Rounding of q8_0 scales and of sums of up to 256 products of normal numbers.
constexpr double kNear = 3e-5;

TEST_P(OperationsTest, AppendStoresWhatTheReferenceStores) {
  each([&](OperationsBed& bed, Operations<Place::host>& alone, Operations<Place::host>& together) {
    // One row for each sequence: rows of one slot do not occur, and those of a sequence are neighbours.
    const AppendOp<Place::host> op{bed.cache(), bed.row_table(), bed.k.data(), bed.v.data()};
    const std::vector<std::byte> k = bed.k_plane, v = bed.v_plane;
    const auto run = [&](Operations<Place::host>& operations) {
      bed.k_plane = k;
      bed.v_plane = v;
      operations.append(op);
      return std::pair(bed.k_plane, bed.v_plane);
    };
    const auto want = run(reference_);
    EXPECT_NE(want.first, k);
    EXPECT_TRUE(run(alone) == want);
    EXPECT_TRUE(run(together) == want);
  });
}

TEST_P(OperationsTest, ScoresEqualTheReference) {
  each([&](OperationsBed& bed, Operations<Place::host>& alone, Operations<Place::host>& together) {
    const Scored want = score_on_host(reference_, bed);
    const Scored got = score_on_host(alone, bed);
    expect_near(got.scores, want.scores, kNear);
    expect_near(got.lse, want.lse, kNear);
    const Scored again = score_on_host(together, bed);
    EXPECT_EQ(std::memcmp(again.scores.data(), got.scores.data(), got.scores.size() * sizeof(float)), 0);
    EXPECT_EQ(again.lse, got.lse);
  });
}

/// A bound is not below any score of its block, and that of one query is one of its products' sums.
void expect_bounds_hold(const OperationsBed& bed, const Scored& scored, const std::vector<float>& bounds) {
  for (const Search& search : all_searches(bed)) {
    for (int query = 0; query < bed.of.group; ++query) {
      const std::size_t row =
          static_cast<std::size_t>((search.row * bed.of.kv_heads + search.head) * bed.of.group + query) * bed.stride;
      for (std::int32_t block = search.first; block < search.last; ++block) {
        const std::int32_t slots = search.pages * kPageTokens;
        for (std::int32_t slot = block * slots; slot < (block + 1) * slots; ++slot) {
          ASSERT_GE(bounds[row + static_cast<std::size_t>(block)],
                    scored.scores[row + static_cast<std::size_t>(slot)] - 1e-4F);
        }
      }
    }
  }
}

TEST_P(OperationsTest, BoundsEqualTheReference) {
  constexpr double kNearBounds = 3e-4;  // sums of up to 256 products, all of one sign
  each([&](OperationsBed& bed, Operations<Place::host>& alone, Operations<Place::host>& together) {
    if (bed.of.freed > 0) return;
    std::vector<std::byte> want = summarise_on_host(reference_, bed);
    EXPECT_TRUE(summarise_on_host(alone, bed) == want);
    EXPECT_TRUE(summarise_on_host(together, bed) == want);
    const std::vector<float> scores = search_on_host(reference_, bed, want);
    expect_bounds_hold(bed, score_on_host(reference_, bed), scores);
    expect_near(search_on_host(alone, bed, want), scores, kNearBounds);
    expect_near(search_on_host(together, bed, want), scores, kNearBounds);
  });
}

TEST_P(OperationsTest, SetsEqualTheReference) {
  each([&](OperationsBed& bed, Operations<Place::host>& alone, Operations<Place::host>& together) {
    Scored scored = score_on_host(reference_, bed);
    const ScoreTable<Place::host> table{scored.scores.data(), scored.lse.data(), bed.stride};
    const std::vector<Choice> choices = all_choices(bed);
    struct Sets {
      std::vector<std::int32_t> slots, count;
    };
    const auto run = [&](Operations<Place::host>& operations) {
      Sets made{std::vector<std::int32_t>(choices.size() * bed.stride, -7), std::vector<std::int32_t>(choices.size())};
      operations.select({bed.cache(),
                         bed.row_table(),
                         bed.of.group,
                         table,
                         choices.data(),
                         static_cast<int>(choices.size()),
                         {made.slots.data(), made.count.data(), static_cast<std::int32_t>(bed.stride),
                          static_cast<int>(choices.size())}});
      return made;
    };
    const Sets want = run(reference_);
    const Sets got = run(alone);
    for (std::size_t c = 0; c < choices.size(); ++c) {
      SCOPED_TRACE("choice " + std::to_string(c));
      ASSERT_EQ(got.count[c], want.count[c]);
      for (std::size_t i = c * bed.stride; i < (c + 1) * bed.stride; ++i) ASSERT_EQ(got.slots[i], want.slots[i]);
    }
    const Sets again = run(together);
    EXPECT_EQ(again.slots, got.slots);
    EXPECT_EQ(again.count, got.count);
  });
}

TEST_P(OperationsTest, ASetIsCutAtTheCapacity) {
  OperationsBed bed({.name = "short table", .kv_heads = 1, .group = 1, .lengths = {100}}, KvType::f32, 1);
  std::vector<float> scores(bed.stride, 0), lse(1, 0);
  const Choice choice{.pooling = Pooling::mean_score, .wanted = 50, .head_units = 4, .tail_units = 90};
  const std::unique_ptr<Operations<Place::host>> cpu = make_cpu_operations();
  for (Operations<Place::host>* operations : std::initializer_list<Operations<Place::host>*>{&reference_, cpu.get()}) {
    std::vector<std::int32_t> slots(20, -7);
    std::int32_t count = 0;
    operations->select({bed.cache(),
                        bed.row_table(),
                        1,
                        {scores.data(), lse.data(), bed.stride},
                        &choice,
                        1,
                        {slots.data(), &count, 16, 1}});
    EXPECT_EQ(count, 16);
    std::vector<std::int32_t> want(16);
    std::iota(want.begin(), want.end(), 0);
    want.resize(20, -7);
    EXPECT_EQ(slots, want);  // equal scores: the lowest slots
  }
}

TEST_P(OperationsTest, MixedReadsEqualTheReference) {
  each([&](OperationsBed& bed, Operations<Place::host>& alone, Operations<Place::host>& together) {
    const std::vector<Read> reads = mixed_reads(bed);
    const Attended want = attend_on_host(reference_, bed, reads);
    const Attended got = attend_on_host(alone, bed, reads);
    expect_near(got.out, want.out, kNear);
    expect_near(got.lse, want.lse, kNear);
    expect_near(got.left.scores, want.left.scores, kNear);
    expect_near(got.left.lse, want.left.lse, kNear);
    const Attended again = attend_on_host(together, bed, reads);
    EXPECT_EQ(again.out, got.out);
    EXPECT_EQ(again.lse, got.lse);
  });
}

TEST_P(OperationsTest, PromptsEqualTheReference) {
  const std::unique_ptr<Operations<Place::host>> alone = make_cpu_operations();
  ThreeWorkers workers;
  const std::unique_ptr<Operations<Place::host>> together = make_cpu_operations(&workers);
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
    for (const OperationsCase& c : prompt_cases()) {
      if (c.dim > 64 && type != KvType::bf16) continue;  // the reference is slow
      SCOPED_TRACE(std::string(name(type)) + ", " + c.name);
      const OperationsBed bed = prompt_bed(c, type, seed_of_test());
      const std::vector<float> got = prefill_on_host(*alone, bed);
      // Of bf16 some machines multiply weights of 16 bits; values reach 5.
      expect_near(got, prefill_on_host(reference_, bed), type == KvType::bf16 ? 2e-2 : kNear);
      EXPECT_EQ(prefill_on_host(*together, bed), got);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(OperationsTest, PiecesOfSeveralSequencesEqualTheReference) {
  const std::unique_ptr<Operations<Place::host>> alone = make_cpu_operations();
  for (const OperationsCase& c : piece_cases()) {
    SCOPED_TRACE(c.name);
    const OperationsBed bed = prompt_bed(c, KvType::f32, seed_of_test());
    expect_near(prefill_pieces_on_host(*alone, bed), prefill_pieces_on_host(reference_, bed), kNear);
    if (HasFatalFailure()) return;
  }
}

/// What rows gave is exp(score - lse), added up: of all rows of a query head 1 each.
TEST_P(OperationsTest, ColumnSumsEqualTheReference) {
  const std::unique_ptr<Operations<Place::host>> alone = make_cpu_operations();
  ThreeWorkers workers;
  const std::unique_ptr<Operations<Place::host>> together = make_cpu_operations(&workers);
  for (const KvType type : {KvType::f32, KvType::bf16}) {
    // Of bf16 some machines multiply queries of 16 bits that have been scaled.
    const double near_lse = type == KvType::bf16 ? 2e-2 : kNear;
    const double near_sum = type == KvType::bf16 ? 0.2 : 2e-4;  // of up to 513 rows and 3 query heads
    for (const OperationsCase& c : prompt_cases()) {
      if (c.dim > 64 || c.group > 3) continue;  // the reference is slow
      SCOPED_TRACE(std::string(name(type)) + ", " + c.name);
      const OperationsBed bed = prompt_bed(c, type, seed_of_test());
      std::vector<float> lse = prompt_lse_on_host(reference_, bed);
      expect_near(prompt_lse_on_host(*alone, bed), lse, near_lse);
      EXPECT_EQ(prompt_lse_on_host(*together, bed), prompt_lse_on_host(*alone, bed));
      const std::vector<float> want = column_sums_on_host(reference_, bed, lse);
      const std::vector<float> got = column_sums_on_host(*alone, bed, lse);
      expect_near(got, want, near_sum);
      const std::vector<float> again = column_sums_on_host(*together, bed, lse);
      EXPECT_EQ(std::memcmp(again.data(), got.data(), got.size() * sizeof(float)), 0);
      double sum = 0;
      for (std::int32_t slot = 0; slot < bed.of.lengths[0] - bed.behind.back() + 1; ++slot) {
        sum += static_cast<double>(want[static_cast<std::size_t>(slot)]);
      }
      EXPECT_NEAR(sum, static_cast<double>(bed.rows()) * bed.of.group, 1e-2);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, OperationsTest, testing::ValuesIn(machine_targets()), target_label);

}  // namespace
}  // namespace glimpse::kernels::test
