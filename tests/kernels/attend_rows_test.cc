#include "fixture.h"

namespace glimpse::kernels::test {
namespace {

struct Case {
  const char* name;
  int dim = 64;
  int group = 3;
  int rows = 5;
  std::int32_t before = 300;  ///< slots before the first row
  std::int32_t begin = 0;
  std::int32_t beyond = 0;  ///< slots behind the last row
  double freed = 0;
  int run = 1;
  float size = 1;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> table{
      {.name = "dim 8", .dim = 8},
      {.name = "dim 16", .dim = 16, .rows = 2},
      {.name = "dim 24", .dim = 24, .group = 2},
      {.name = "dim 80", .dim = 80, .rows = 4},
      {.name = "dim 96", .dim = 96, .group = 4},
      {.name = "dim 128", .dim = 128, .group = 4},
      {.name = "dim 256", .dim = 256, .group = 2, .rows = 3},
      {.name = "one row", .rows = 1},
      {.name = "one query a row", .group = 1},
      {.name = "one vector of queries", .group = 4, .rows = 4},
      {.name = "two vectors", .group = 5, .rows = 5},
      {.name = "three vectors", .dim = 128, .group = 8, .rows = 5},
      {.name = "five vectors", .group = 16, .rows = 5},
      {.name = "group 17", .group = 17, .rows = 3},
      {.name = "group 32", .dim = 128, .group = 32, .rows = 2, .before = 40},
      {.name = "group 33", .group = 33, .rows = 5, .before = 530, .freed = 0.3},
      {.name = "group 200", .group = 200, .rows = 5, .before = 30},
      {.name = "nothing before", .before = 0},
      {.name = "a split ends before the last row", .before = 509},
      {.name = "a split begins with the last row", .before = 508},
      {.name = "whole splits", .before = 1531, .run = 16},
      {.name = "from the second split on", .before = 1300, .begin = 512},
      {.name = "rows end inside the range", .before = 700, .beyond = 90},
      {.name = "rows end splits before the range", .before = 40, .beyond = 1200},
      {.name = "some freed", .before = 600, .freed = 0.3},
      {.name = "most freed", .before = 1100, .freed = 0.97},
      {.name = "all zero", .size = 0},
      {.name = "large values", .size = 60},
      {.name = "tiny values", .size = 1e-12F},
  };
  return table;
}

class AttendRowsTest : public KernelTest {};

TEST_P(AttendRowsTest, EachRowGetsTheBitsThatItGetsAlone) {
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
    for (const Case& c : cases()) {
      SCOPED_TRACE(std::string(name(type)) + ", " + c.name);
      const std::int32_t slots = c.before + c.rows + c.beyond;
      TestHead head({type, c.dim}, slots, random_, c.run);
      head.fill(random_, type == KvType::f16 ? std::min(c.size, 10.0F) : c.size);
      if (c.freed > 0) head.free_some(random_, c.freed);
      const HeadView view = head.view();
      const auto width = static_cast<std::size_t>(c.group * c.dim);
      const auto query = normals(static_cast<std::size_t>(c.rows) * (width + 5));
      const int queries = c.group * c.rows;
      const auto parts = static_cast<std::size_t>((slots - c.begin + kSplitTokens - 1) / kSplitTokens);
      Guarded<float> got(parts * partial_floats(queries, c.dim)), alone(got.size()), want(got.size());
      AttendRowsItem item{.head = &view,
                          .query = query.data(),
                          .query_stride = width + 5,
                          .group = c.group,
                          .rows = c.rows,
                          .scale = 1.0F / std::sqrt(static_cast<float>(c.dim)),
                          .first_slot = c.before,
                          .begin = c.begin,
                          .end = slots};
      item.partial = got.data();
      std::vector<std::byte> workspace(attend_rows_workspace(head.format, queries));
      attend_rows(head.format, item, workspace);
      item.partial = alone.data();
      ref::attend_rows(head.format, item, attend);
      ASSERT_EQ(std::memcmp(got.data(), alone.data(), got.size() * sizeof(float)), 0);
      EXPECT_TRUE(got.guards_intact());

      item.partial = want.data();
      ref::attend_rows(head.format, item);
      double allowed = 0;
      for (std::size_t at = 0; at < query.size(); at += item.query_stride) {
        const Tolerance row = tolerance(head, std::span(query).subspan(at, width), item.scale);
        allowed = std::max({allowed, row.out, row.score + 1e-5});
      }
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (got[i] == want[i]) continue;  // infinities too
        ASSERT_NEAR(got[i], want[i], allowed) << "at " << i;
      }
    }
  }
}

TEST_P(AttendRowsTest, SeesNothingOfTheRowsBehind) {
  for (const KvType type : {KvType::f32, KvType::bf16, KvType::q8_0}) {
    constexpr std::int32_t kBefore = 123;
    constexpr int kRows = 4;
    TestHead head({type, 64}, kBefore + kRows, random_);
    head.fill(random_);
    const HeadView view = head.view();
    const auto query = normals(kRows * 3 * 64);
    Guarded<float> before(partial_floats(kRows * 3, 64)), after(before.size());
    std::vector<std::byte> workspace(attend_rows_workspace(head.format, kRows * 3));
    AttendRowsItem item{.head = &view,
                        .query = query.data(),
                        .query_stride = std::size_t{3} * 64,
                        .group = 3,
                        .rows = kRows,
                        .scale = 0.125F,
                        .first_slot = kBefore,
                        .end = kBefore + kRows};
    item.partial = before.data();
    attend_rows(head.format, item, workspace);
    for (const std::int32_t slot : {kBefore + 1, kBefore + 2, kBefore + 3}) {
      std::memset(view.row_of(view.k_plane, slot, head.format), 0xff, head.format.row_bytes());
      std::memset(view.row_of(view.v_plane, slot, head.format), 0xff, head.format.row_bytes());
    }
    item.partial = after.data();
    attend_rows(head.format, item, workspace);
    EXPECT_EQ(std::memcmp(before.data(), after.data(), std::size_t{3} * 64 * sizeof(float)), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, AttendRowsTest, testing::ValuesIn(machine_targets()), target_label);

}  // namespace
}  // namespace glimpse::kernels::test
