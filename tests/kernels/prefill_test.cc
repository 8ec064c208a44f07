#include "glimpse/kernels/cpu/prefill.h"

#include "fixture.h"

namespace glimpse::kernels::test {
namespace {

struct Case {
  const char* name;
  int dim = 64;
  int group = 3;
  std::int32_t first = 0;  ///< slot of the first row
  std::int32_t rows = 0;   ///< 0: a whole tile
  float size = 1;
  double freed = 0;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> table{
      {.name = "first tile"},
      {.name = "one row at 0", .rows = 1},
      {.name = "one row", .first = 77, .rows = 1},
      {.name = "ragged", .first = 131, .rows = 13},
      {.name = "dim 16", .dim = 16, .first = 50},
      {.name = "dim 80", .dim = 80, .group = 2, .first = 10, .rows = 30},
      {.name = "dim 96", .dim = 96, .group = 4, .first = 64},
      {.name = "dim 128", .dim = 128, .group = 8, .first = 100},
      {.name = "dim 256", .dim = 256, .group = 1, .first = 3, .rows = 70},
      {.name = "group 5", .group = 5, .first = 20},
      {.name = "group 7", .group = 7, .first = 300},
      {.name = "group 16", .group = 16, .first = 200},
      {.name = "all zero", .first = 100, .rows = 5, .size = 0},
      {.name = "large values", .first = 100, .rows = 9, .size = 10},
      {.name = "freed slots", .first = 200, .rows = 20, .freed = 0.4},
  };
  return table;
}

class PrefillTest : public KernelTest {
 protected:
  struct Run {
    std::vector<float> query;
    std::size_t stride;
    PrefillItem item;
  };

  Run make(const Case& c, const HeadView& view) {
    const std::int32_t rows = c.rows == 0 ? prefill_tile_rows(c.group) : c.rows;
    Run run;
    run.stride = static_cast<std::size_t>(c.group * c.dim + 7);
    run.query = normals(static_cast<std::size_t>(rows) * run.stride);
    run.item = {.head = &view,
                .query_stride = run.stride,
                .out_stride = run.stride,
                .group = c.group,
                .scale = 1.0F / std::sqrt(static_cast<float>(c.dim)),
                .first_slot = c.first,
                .rows = rows};
    return run;
  }

  /// Rows without the gaps between them.
  static std::vector<float> tight(const Run& run, int width) {
    std::vector<float> rows;
    for (std::int32_t r = 0; r < run.item.rows; ++r) {
      const float* from = run.query.data() + static_cast<std::size_t>(r) * run.stride;
      rows.insert(rows.end(), from, from + width);
    }
    return rows;
  }

  void expect_rows(Guarded<float>& got, Guarded<float>& want, const Run& run, int width, double allowed) {
    for (std::size_t i = 0; i < want.size(); ++i) {
      const bool inside = static_cast<int>(i % run.stride) < width;
      if (!inside) {
        ASSERT_TRUE(std::isnan(got[i])) << "wrote between rows, at " << i;
      } else {
        ASSERT_NEAR(got[i], want[i], allowed) << "row " << i / run.stride << ", value " << i % run.stride;
      }
    }
    EXPECT_TRUE(got.guards_intact());
  }
};

TEST_P(PrefillTest, EqualsReferenceAndDecoding) {
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
    for (const Case& c : cases()) {
      SCOPED_TRACE(std::string(name(type)) + ", " + c.name);
      const std::int32_t rows = c.rows == 0 ? prefill_tile_rows(c.group) : c.rows;
      // Slots behind the last row hold NaN: nothing may read them.
      TestHead head({type, c.dim}, c.first + rows, random_);
      head.fill(random_, c.size);
      if (c.freed > 0) head.free_some(random_, c.freed);
      const HeadView view = head.view();
      Run run = make(c, view);
      const std::size_t floats = static_cast<std::size_t>(rows) * run.stride;
      Guarded<float> want(floats), got(floats), decoded(floats);
      Guarded<std::byte> workspace(prefill_workspace(head.format, c.group));
      run.item.query = run.query.data();
      run.item.out = want.data();
      ref::prefill(head.format, run.item);
      run.item.out = got.data();
      prefill_with(head.format, run.item, workspace.span(), nullptr);
      EXPECT_TRUE(workspace.guards_intact());
      const int width = c.group * c.dim;
      const double allowed = tolerance(head, tight(run, width), run.item.scale).out;
      expect_rows(got, want, run, width, allowed);

      std::vector<float> partials;
      for (std::int32_t r = 0; r < rows; ++r) {
        const std::int32_t end = c.first + r + 1;
        const std::int32_t count = (end + kSplitTokens - 1) / kSplitTokens;
        const std::size_t size = partial_floats(c.group, c.dim);
        partials.assign(static_cast<std::size_t>(count) * size, kNan);
        for (std::int32_t p = 0; p < count; ++p) {
          attend(head.format, {.head = &view,
                               .query = run.query.data() + static_cast<std::size_t>(r) * run.stride,
                               .group = c.group,
                               .scale = run.item.scale,
                               .begin = p * kSplitTokens,
                               .end = std::min(end, (p + 1) * kSplitTokens),
                               .partial = partials.data() + static_cast<std::size_t>(p) * size});
        }
        combine(partials.data(), count, c.group, c.dim, decoded.data() + static_cast<std::size_t>(r) * run.stride);
      }
      expect_rows(got, decoded, run, width, 2 * allowed);
    }
  }
}

TEST_P(PrefillTest, RowsDoNotDependOnTheirTile) {
  TestHead head({KvType::bf16, 64}, 400, random_);
  head.fill(random_);
  const HeadView view = head.view();
  const Case c{.name = "", .first = 345, .rows = 50};
  Run run = make(c, view);
  const std::size_t floats = 50 * run.stride;
  Guarded<float> whole(floats), parts(floats);
  std::vector<std::byte> workspace(prefill_workspace(head.format, c.group));
  run.item.query = run.query.data();
  run.item.out = whole.data();
  prefill_with(head.format, run.item, workspace, nullptr);
  for (std::int32_t at = 0; at < 50;) {
    PrefillItem part = run.item;
    part.rows = std::min(50 - at, 1 + below(20));
    part.first_slot = c.first + at;
    part.query = run.query.data() + static_cast<std::size_t>(at) * run.stride;
    part.out = parts.data() + static_cast<std::size_t>(at) * run.stride;
    prefill_with(head.format, part, workspace, nullptr);
    at += part.rows;
  }
  EXPECT_EQ(std::memcmp(whole.data(), parts.data(), floats * sizeof(float)), 0);
}

TEST_P(PrefillTest, Bf16ProductsEqualReference) {
  std::vector<const Bf16Products*> tables{bf16_products_portable()};
  if (bf16_products() != nullptr) tables.push_back(bf16_products());
  for (const Bf16Products* products : tables) {
    for (const Case& c : cases()) {
      SCOPED_TRACE(std::string(products == tables[0] ? "portable" : "this processor's") + ", " + c.name);
      const std::int32_t rows = c.rows == 0 ? prefill_tile_rows(c.group) : c.rows;
      TestHead head({KvType::bf16, c.dim}, c.first + rows, random_);
      head.fill(random_, c.size);
      if (c.freed > 0) head.free_some(random_, c.freed);
      const HeadView view = head.view();
      Run run = make(c, view);
      const std::size_t floats = static_cast<std::size_t>(rows) * run.stride;
      Guarded<float> want(floats), got(floats);
      Guarded<std::byte> workspace(prefill_workspace(head.format, c.group));
      run.item.query = run.query.data();
      run.item.out = want.data();
      ref::prefill(head.format, run.item);
      run.item.out = got.data();
      prefill_with(head.format, run.item, workspace.span(), products);
      EXPECT_TRUE(workspace.guards_intact());
      // Queries and weights round to 8 bits: random errors of 2^-9 in the products of a score, and in each weight.
      const int width = c.group * c.dim;
      const double score = tolerance(head, tight(run, width), run.item.scale).score * 0x1p-9 /
                           (4 * std::sqrt(c.dim) * std::numeric_limits<float>::epsilon());
      expect_rows(got, want, run, width, (2 * score + 0x1p-8) * head.largest_v() + 1e-6);
    }
  }
}

TEST_P(PrefillTest, TooManyRowsIsABug) {
  TestHead head({KvType::f32, 16}, 300, random_);
  head.fill(random_);
  const HeadView view = head.view();
  Run run = make({.name = "", .dim = 16, .group = 1, .rows = prefill_tile_rows(1) + 1}, view);
  std::vector<float> out(run.query.size());
  std::vector<std::byte> workspace(prefill_workspace(head.format, 1));
  run.item.query = run.query.data();
  run.item.out = out.data();
  EXPECT_ANY_THROW(prefill(head.format, run.item, workspace));
}

INSTANTIATE_TEST_SUITE_P(Targets, PrefillTest, testing::ValuesIn(machine_targets()), target_label);

}  // namespace
}  // namespace glimpse::kernels::test
