#include "prefill_fixture.h"

namespace glimpse::kernels::test {
namespace {

class PrefillObserveTest : public PrefillTest {
 protected:
  /// Calls test(c, head, run, products) for every case, type and table.
  template <class Test>
  void for_each_run(const Test& test) {
    for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
      for (const Case& c : cases()) {
        TestHead head = make_head(c, type);
        const HeadView view = head.view();
        Run run = make(c, view, head.format);
        point(run);
        for (const Bf16Products* products : tables(type)) {
          SCOPED_TRACE(std::string(name(type)) + ", " + c.name + (products != nullptr ? ", bf16 products" : ""));
          test(head, run, products);
          if (HasFatalFailure()) return;
        }
      }
    }
  }

  static double score_error(const TestHead& head, const Run& run, const Bf16Products* products) {
    const int width = run.item.group * head.format.dim;
    return products != nullptr ? bf16_score_error(head, run, width)
                               : tolerance(head, tight(run, width), run.item.scale).score;
  }

  static std::size_t lanes(const Run& run) { return static_cast<std::size_t>(run.item.rows * run.item.group); }
};

TEST_P(PrefillObserveTest, LogSumsEqualReference) {
  for_each_run([&](const TestHead& head, Run& run, const Bf16Products* products) {
    Guarded<float> want(lanes(run)), got(lanes(run)), beside(lanes(run));
    Guarded<std::byte> workspace(prefill_workspace(head.format, run.item.group));
    run.item.lse = want.data();
    ref::prefill_lse(head.format, run.item);
    run.item.lse = got.data();
    prefill_lse_with(head.format, run.item, workspace.span(), products);
    expect_lse(got, want, score_error(head, run, products));
    EXPECT_TRUE(workspace.guards_intact());
    // Beside the attention they are the same bits, and the attention is what it is without them.
    std::vector<float> with(run.query.size()), without(run.query.size());
    run.item.lse = beside.data();
    run.item.out = with.data();
    prefill_with(head.format, run.item, workspace.span(), products);
    run.item.lse = nullptr;
    run.item.out = without.data();
    prefill_with(head.format, run.item, workspace.span(), products);
    EXPECT_EQ(std::memcmp(got.data(), beside.data(), lanes(run) * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(with.data(), without.data(), with.size() * sizeof(float)), 0);
  });
}

TEST_P(PrefillObserveTest, ColumnSumsEqualReference) {
  for_each_run([&](const TestHead& head, Run& run, const Bf16Products* products) {
    const std::int32_t end = run.item.first_slot + run.item.rows;
    const std::int32_t begin = below(end / 2 + 1);
    const std::vector<float> weights = [&] {
      std::vector<float> w(static_cast<std::size_t>(run.item.rows));
      for (float& x : w) x = std::fabs(normal());
      w[0] = 0;
      return w;
    }();
    Guarded<float> log_sums(lanes(run)), exact(lanes(run));
    const auto keys = static_cast<std::size_t>(end - begin);
    Guarded<float> want(keys), got(keys);
    const std::vector<float> before = normals(keys);
    std::copy(before.begin(), before.end(), want.data());
    std::copy(before.begin(), before.end(), got.data());
    Guarded<std::byte> workspace(prefill_workspace(head.format, run.item.group));
    ColumnSumsItem item{.tile = run.item, .weights = weights.data(), .begin = begin, .end = end, .sums = want.data()};
    item.tile.lse = exact.data();
    ref::prefill_lse(head.format, item.tile);
    ref::prefill_column_sums(head.format, item);
    item.tile.lse = log_sums.data();
    item.sums = got.data();
    prefill_lse_with(head.format, item.tile, workspace.span(), products);
    prefill_column_sums_with(head.format, item, workspace.span(), products);
    const double error = 2 * score_error(head, run, products) + 2e-5;
    for (std::size_t i = 0; i < keys; ++i) {
      // A score and a log-sum that are off make a share off by a factor.
      const double share = std::fabs(want[i] - before[i]);
      ASSERT_NEAR(got[i], want[i], std::expm1(error) * share + 2e-7 * std::fabs(before[i]) + 1e-30) << i;
    }
    EXPECT_TRUE(got.guards_intact());
    EXPECT_TRUE(workspace.guards_intact());
  });
}

TEST_P(PrefillObserveTest, ColumnSumsOfEverythingCountTheQueries) {
  for_each_run([&](const TestHead& head, Run& run, const Bf16Products* products) {
    const std::int32_t end = run.item.first_slot + run.item.rows;
    std::vector<float> log_sums(lanes(run)), sums(static_cast<std::size_t>(end) + 5);
    std::vector<std::byte> workspace(prefill_workspace(head.format, run.item.group));
    run.item.lse = log_sums.data();
    prefill_lse_with(head.format, run.item, workspace, products);
    // Slots behind the last row add nothing.
    prefill_column_sums_with(head.format, {.tile = run.item, .end = end + 5, .sums = sums.data()}, workspace, products);
    const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
    const auto reading = std::count_if(log_sums.begin(), log_sums.end(), [](float x) { return x > -kInfinity; });
    EXPECT_NEAR(sum, static_cast<double>(reading), 1e-5 * static_cast<double>(reading));
  });
}

TEST_P(PrefillObserveTest, AnySplitOfARangeGivesTheSameBits) {
  for (const double listed : {0.0, 0.4}) {
    const Case c{.name = "", .first = 345, .rows = 42, .freed = 0.1, .own = listed > 0 ? 0 : -1, .listed = listed};
    TestHead head = make_head(c, KvType::bf16);
    const HeadView view = head.view();
    Run run = make(c, view, head.format);
    point(run);
    const std::int32_t end = c.first + c.rows;
    std::vector<float> log_sums(lanes(run));
    std::vector<std::byte> workspace(prefill_workspace(head.format, c.group));
    run.item.lse = log_sums.data();
    prefill_lse(head.format, run.item, workspace);
    Guarded<float> whole(static_cast<std::size_t>(end)), parts(static_cast<std::size_t>(end));
    std::fill_n(whole.data(), end, 0.0F);
    std::fill_n(parts.data(), end, 0.0F);
    // Two tiles, one after the other.
    for (int tile = 0; tile < 2; ++tile) {
      prefill_column_sums(head.format, {.tile = run.item, .end = end, .sums = whole.data()}, workspace);
    }
    for (std::int32_t at = 0; at < end;) {
      const std::int32_t stop = std::min(end, at + below(90));
      for (int tile = 0; tile < 2; ++tile) {
        prefill_column_sums(head.format, {.tile = run.item, .begin = at, .end = stop, .sums = parts.data() + at},
                            workspace);
      }
      at = stop;
    }
    EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * sizeof(float)), 0);
    EXPECT_TRUE(whole.guards_intact());
    EXPECT_TRUE(parts.guards_intact());
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, PrefillObserveTest, testing::ValuesIn(machine_targets()), target_label);

}  // namespace
}  // namespace glimpse::kernels::test
