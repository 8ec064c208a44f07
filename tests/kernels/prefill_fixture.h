// What the tests of the prefill kernels share: the table of tiles, dense and with lists, and a run of one.
#pragma once

#include "fixture.h"
#include "glimpse/kernels/cpu/prefill.h"
#include "tests/support/bf16_products_portable.h"

namespace glimpse::kernels::test {

struct Case {
  const char* name;
  int dim = 64;
  int group = 3;
  std::int32_t first = 0;  ///< slot of the first row
  std::int32_t rows = 0;   ///< 0: a whole tile
  float size = 1;
  double freed = 0;
  std::int32_t own = -1;  ///< the own part begins so many slots before the first row; -1: at slot 0
  double listed = 0;      ///< chance of a slot before the own part to be in the list
};

inline const std::vector<Case>& cases() {
  static const std::vector<Case> table{
      {.name = "first tile"},
      {.name = "one row at 0", .rows = 1},
      {.name = "one row", .first = 77, .rows = 1},
      {.name = "ragged", .first = 131, .rows = 13},
      {.name = "dim 16", .dim = 16, .first = 50},
      {.name = "dim 24", .dim = 24, .group = 3, .first = 131, .rows = 5},
      {.name = "dim 72", .dim = 72, .group = 2, .first = 100, .rows = 30},
      {.name = "dim 80", .dim = 80, .group = 2, .first = 10, .rows = 30},
      {.name = "dim 96", .dim = 96, .group = 4, .first = 64},
      {.name = "dim 128", .dim = 128, .group = 8, .first = 100},
      {.name = "dim 256", .dim = 256, .group = 1, .first = 3, .rows = 70},
      {.name = "group 5", .group = 5, .first = 20},
      {.name = "group 7", .group = 7, .first = 300},
      {.name = "group 16", .group = 16, .first = 200},
      {.name = "group 17", .group = 17, .first = 100},
      {.name = "group 33", .dim = 128, .group = 33, .first = 40},
      {.name = "group 192", .group = 192, .first = 70},
      {.name = "group 200", .group = 200, .first = 70},
      {.name = "group 400, list", .dim = 24, .group = 400, .first = 300, .own = 0, .listed = 0.3},
      {.name = "all zero", .first = 100, .rows = 5, .size = 0},
      {.name = "large values", .first = 100, .rows = 9, .size = 10},
      {.name = "freed slots", .first = 200, .rows = 20, .freed = 0.4},
      {.name = "everything freed", .first = 70, .rows = 5, .freed = 1},
      {.name = "own part alone", .first = 300, .rows = 42, .own = 0},
      {.name = "list", .first = 500, .rows = 42, .own = 0, .listed = 0.1},
      {.name = "list, later in its tile", .first = 530, .rows = 12, .own = 30, .listed = 0.1},
      {.name = "one entry or so", .first = 300, .rows = 42, .own = 0, .listed = 0.003},
      {.name = "whole list", .first = 200, .rows = 42, .own = 0, .listed = 1},
      {.name = "list, freed slots", .first = 300, .rows = 20, .freed = 0.4, .own = 0, .listed = 0.3},
      {.name = "list, dim 128", .dim = 128, .group = 4, .first = 300, .rows = 32, .own = 0, .listed = 0.2},
      {.name = "list, dim 80, group 16", .dim = 80, .group = 16, .first = 300, .rows = 8, .own = 0, .listed = 0.5},
  };
  return table;
}

class PrefillTest : public KernelTest {
 protected:
  struct Run {
    std::vector<float> query;
    std::size_t stride;
    std::vector<std::int32_t> list;
    PrefillItem item;
  };

  /// f32 products, and for bf16 the tables of products that this processor runs.
  static std::vector<const Bf16Products*> tables(KvType type) {
    std::vector<const Bf16Products*> tables{nullptr};
    if (type != KvType::bf16) return tables;
    tables.push_back(bf16_products_portable());
    if (bf16_products() != nullptr) tables.push_back(bf16_products());
    return tables;
  }

  static std::int32_t rows_of(const Case& c) { return c.rows == 0 ? prefill_tile_rows(c.group) : c.rows; }

  /// A head for a case. Slots behind the last row hold NaN: nothing may read them.
  TestHead make_head(const Case& c, KvType type) {
    TestHead head({type, c.dim}, c.first + rows_of(c), random_);
    head.fill(random_, c.size);
    if (c.freed > 0) head.free_some(random_, c.freed);
    return head;
  }

  /// Slots that the tile does not see become NaN: nothing may read them.
  Run make(const Case& c, const HeadView& view, const KvFormat& format) {
    Run run;
    run.stride = static_cast<std::size_t>(c.group * c.dim + 7);
    run.query = normals(static_cast<std::size_t>(rows_of(c)) * run.stride);
    const std::int32_t own_begin = c.own < 0 ? 0 : c.first - c.own;
    for (std::int32_t slot = 0; slot < own_begin; ++slot) {
      if (std::uniform_real_distribution<double>()(random_) < c.listed) {
        run.list.push_back(slot);
      } else {
        std::memset(view.row_of(view.k_plane, slot, format), 0xff, format.row_bytes());
        std::memset(view.row_of(view.v_plane, slot, format), 0xff, format.row_bytes());
      }
    }
    run.item = {.head = &view,
                .query_stride = run.stride,
                .out_stride = run.stride,
                .group = c.group,
                .scale = 1.0F / std::sqrt(static_cast<float>(c.dim)),
                .first_slot = c.first,
                .rows = rows_of(c),
                .own_begin = own_begin,
                .list_count = static_cast<std::int32_t>(run.list.size())};
    return run;
  }
  /// The pointers into a run that has its final place.
  static void point(Run& run) {
    run.item.query = run.query.data();
    run.item.list = run.list.empty() ? nullptr : run.list.data();
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

  /// What rounding of queries and keys' products to bf16 may do to a score.
  static double bf16_score_error(const TestHead& head, const Run& run, int width) {
    return tolerance(head, tight(run, width), run.item.scale).score * 0x1p-9 /
           (4 * std::sqrt(head.format.dim) * std::numeric_limits<float>::epsilon());
  }

  static void expect_lse(const Guarded<float>& got, const Guarded<float>& want, double allowed) {
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (std::isinf(want[i])) {
        ASSERT_EQ(got[i], want[i]) << i;
      } else {
        ASSERT_NEAR(got[i], want[i], allowed + 4e-7 * std::fabs(want[i])) << i;
      }
    }
    EXPECT_TRUE(got.guards_intact());
  }
};

}  // namespace glimpse::kernels::test
