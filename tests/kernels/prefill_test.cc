#include "prefill_fixture.h"

namespace glimpse::kernels::test {
namespace {

TEST_P(PrefillTest, EqualsReferenceAndDecoding) {
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
    for (const Case& c : cases()) {
      SCOPED_TRACE(std::string(name(type)) + ", " + c.name);
      const std::int32_t rows = rows_of(c);
      TestHead head = make_head(c, type);
      const HeadView view = head.view();
      Run run = make(c, view, head.format);
      point(run);
      const std::size_t floats = static_cast<std::size_t>(rows) * run.stride;
      Guarded<float> want(floats), got(floats), decoded(floats);
      Guarded<std::byte> workspace(prefill_workspace(head.format, c.group));
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
        std::vector<std::int32_t> seen = run.list;
        for (std::int32_t slot = run.item.own_begin; slot <= c.first + r; ++slot) seen.push_back(slot);
        const auto end = static_cast<std::int32_t>(seen.size());
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
                               .list = c.own < 0 ? nullptr : seen.data(),
                               .partial = partials.data() + static_cast<std::size_t>(p) * size});
        }
        combine(partials.data(), count, c.group, c.dim, decoded.data() + static_cast<std::size_t>(r) * run.stride);
      }
      expect_rows(got, decoded, run, width, 2 * allowed);
    }
  }
}

TEST_P(PrefillTest, RangesEqualReferenceAndCombineToTheWhole) {
  for (const KvType type : {KvType::f32, KvType::bf16, KvType::q8_0}) {
    for (const Case& c : cases()) {
      SCOPED_TRACE(std::string(name(type)) + ", " + c.name);
      const std::int32_t rows = rows_of(c);
      TestHead head = make_head(c, type);
      const HeadView view = head.view();
      Run run = make(c, view, head.format);
      point(run);
      run.item.out_stride = static_cast<std::size_t>(c.group * c.dim);  // as partial results lie
      std::vector<std::byte> workspace(prefill_workspace(head.format, c.group));
      const std::size_t values = static_cast<std::size_t>(rows) * run.item.out_stride;
      const std::size_t queries = static_cast<std::size_t>(rows * c.group);
      const double allowed = tolerance(head, tight(run, c.group * c.dim), run.item.scale).out;
      std::vector<float> partials;
      int count = 0;
      for (std::int32_t begin = 0; begin < c.first + rows; begin += 100, ++count) {
        run.item.begin = begin;
        run.item.end = begin + 100;
        Guarded<float> want(values), want_lse(queries), got(values), got_lse(queries);
        run.item.out = want.data();
        run.item.lse = want_lse.data();
        ref::prefill(head.format, run.item);
        run.item.out = got.data();
        run.item.lse = got_lse.data();
        prefill_with(head.format, run.item, workspace, nullptr);
        for (std::size_t i = 0; i < values; ++i) ASSERT_NEAR(got[i], want[i], allowed) << begin << ", value " << i;
        expect_lse(got_lse, want_lse, 1e-4);
        partials.insert(partials.end(), got.data(), got.data() + values);
        partials.insert(partials.end(), got_lse.data(), got_lse.data() + queries);
      }
      Guarded<float> want(values), got(values);
      run.item.begin = 0;
      run.item.end = kNoEnd;
      run.item.lse = nullptr;
      run.item.out = want.data();
      ref::prefill(head.format, run.item);
      combine(partials.data(), count, static_cast<int>(queries), c.dim, got.data());
      for (std::size_t i = 0; i < values; ++i) ASSERT_NEAR(got[i], want[i], 2 * allowed) << "whole, value " << i;
    }
  }
}

TEST_P(PrefillTest, RowsDoNotDependOnTheirTile) {
  std::vector<std::pair<KvType, Case>> table;
  for (const int dim : {24, 64, 72, 128}) {
    table.push_back({KvType::bf16, {.name = "dense", .dim = dim, .first = 345, .rows = 50}});
    table.push_back({KvType::bf16, {.name = "list", .dim = dim, .first = 345, .rows = 50, .own = 0, .listed = 0.3}});
    table.push_back({KvType::q8_0, {.name = "list", .dim = dim, .first = 345, .rows = 50, .own = 0, .listed = 0.3}});
  }
  for (const auto& [type, c] : table) {
    // Tiles of 1 to 20 rows end in panels of one, two and three vectors.
    for (const Bf16Products* products : tables(type)) {
      SCOPED_TRACE(std::string(name(type)) + ", " + c.name + ", " + std::to_string(c.dim) +
                   (products != nullptr ? ", bf16 products" : ""));
      TestHead head = make_head(c, type);
      const HeadView view = head.view();
      Run run = make(c, view, head.format);
      point(run);
      const std::size_t floats = 50 * run.stride;
      Guarded<float> whole(floats), parts(floats);
      std::vector<std::byte> workspace(prefill_workspace(head.format, c.group));
      run.item.out = whole.data();
      prefill_with(head.format, run.item, workspace, products);
      for (std::int32_t at = 0; at < 50;) {
        PrefillItem part = run.item;
        part.rows = std::min(50 - at, 1 + below(20));
        part.first_slot = c.first + at;
        part.query = run.query.data() + static_cast<std::size_t>(at) * run.stride;
        part.out = parts.data() + static_cast<std::size_t>(at) * run.stride;
        prefill_with(head.format, part, workspace, products);
        at += part.rows;
      }
      EXPECT_EQ(std::memcmp(whole.data(), parts.data(), floats * sizeof(float)), 0);
    }
  }
}

TEST_P(PrefillTest, Bf16ProductsEqualReference) {
  std::vector<const Bf16Products*> tables{bf16_products_portable()};
  if (bf16_products() != nullptr) tables.push_back(bf16_products());
  for (const Bf16Products* products : tables) {
    for (const Case& c : cases()) {
      SCOPED_TRACE(std::string(products == tables[0] ? "portable" : "this processor's") + ", " + c.name);
      TestHead head = make_head(c, KvType::bf16);
      const HeadView view = head.view();
      Run run = make(c, view, head.format);
      point(run);
      const std::size_t floats = static_cast<std::size_t>(run.item.rows) * run.stride;
      Guarded<float> want(floats), got(floats);
      Guarded<std::byte> workspace(prefill_workspace(head.format, c.group));
      run.item.out = want.data();
      ref::prefill(head.format, run.item);
      run.item.out = got.data();
      prefill_with(head.format, run.item, workspace.span(), products);
      EXPECT_TRUE(workspace.guards_intact());
      // Queries and weights round to 8 bits: random errors of 2^-9 in the products of a score, and in each weight.
      const int width = c.group * c.dim;
      const double score = bf16_score_error(head, run, width);
      expect_rows(got, want, run, width, (2 * score + 0x1p-8) * head.largest_v() + 1e-6);
    }
  }
}

TEST_P(PrefillTest, ListOfEverythingEqualsDense) {
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
    const Case c{.name = "", .first = 317, .rows = 42, .own = 0, .listed = 1};
    TestHead head = make_head(c, type);
    const HeadView view = head.view();
    Run run = make(c, view, head.format);
    point(run);
    const std::size_t floats = static_cast<std::size_t>(run.item.rows) * run.stride;
    Guarded<float> dense(floats), listed(floats);
    std::vector<std::byte> workspace(prefill_workspace(head.format, c.group));
    run.item.out = listed.data();
    prefill_with(head.format, run.item, workspace, nullptr);
    run.item.out = dense.data();
    run.item.list = nullptr;
    run.item.list_count = run.item.own_begin = 0;
    prefill_with(head.format, run.item, workspace, nullptr);
    const int width = c.group * c.dim;
    expect_rows(listed, dense, run, width, 2 * tolerance(head, tight(run, width), run.item.scale).out);
  }
}

TEST_P(PrefillTest, BrokenItemsAreBugs) {
  const Case c{.name = "", .dim = 16, .group = 1, .first = 100, .own = 0, .listed = 0.5};
  TestHead head = make_head(c, KvType::f32);
  const HeadView view = head.view();
  Run run = make(c, view, head.format);
  point(run);
  std::vector<float> out(run.query.size());
  std::vector<std::byte> workspace(prefill_workspace(head.format, 1));
  run.item.out = out.data();
  PrefillItem item = run.item;
  item.rows = prefill_tile_rows(1) + 1;
  EXPECT_ANY_THROW(prefill(head.format, item, workspace));
  item = run.item;
  item.own_begin = run.list.back();
  EXPECT_ANY_THROW(prefill(head.format, item, workspace));
  item = run.item;
  item.own_begin = item.first_slot + 1;
  EXPECT_ANY_THROW(prefill(head.format, item, workspace));
  EXPECT_ANY_THROW(prefill(head.format, run.item, std::span(workspace).subspan(1)));
  EXPECT_ANY_THROW(prefill_lse(head.format, run.item, workspace));
  EXPECT_ANY_THROW(prefill_column_sums(head.format, {.tile = run.item}, workspace));
}

INSTANTIATE_TEST_SUITE_P(Targets, PrefillTest, testing::ValuesIn(machine_targets()), target_label);

}  // namespace
}  // namespace glimpse::kernels::test
