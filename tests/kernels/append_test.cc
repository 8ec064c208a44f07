#include "fixture.h"
#include "glimpse/kernels/ref/rows.h"

namespace glimpse::kernels::test {
namespace {

class AppendTest : public KernelTest {};

TEST_P(AppendTest, StoresTheBitsOfTheReference) {
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
    for (const int dim : {16, 64, 80, 128, 256}) {
      SCOPED_TRACE(std::string(name(type)) + ", dim " + std::to_string(dim));
      const KvFormat format{type, dim};
      const std::size_t bytes = 4 * format.page_bytes();
      const std::vector<PageId> pages{2, 0, 3, 1};
      const auto stride = static_cast<std::size_t>(dim) + 5;
      auto k = normals(40 * stride), v = normals(40 * stride, 1e-3F);
      // Halves between two neighbours, subnormals and the largest values of f16.
      k[0] = 1.00048828125F;
      k[1] = 1.00146484375F;
      k[2] = 6e-8F;
      k[3] = -65504.0F;
      k[4] = 1.00390625F;
      std::fill(v.begin(), v.begin() + dim, 0.0F);
      Guarded<std::byte> want_k(bytes), want_v(bytes), got_k(bytes), got_v(bytes);
      const auto item = [&](const HeadView& head) {
        return AppendItem{.head = &head, .k = k.data(), .v = v.data(), .row_stride = stride, .slot = 7, .rows = 40};
      };
      const HeadView want{.k_plane = want_k.data(), .v_plane = want_v.data(), .pages = pages.data(), .slots = 47};
      const HeadView got{.k_plane = got_k.data(), .v_plane = got_v.data(), .pages = pages.data(), .slots = 47};
      ref::append(format, item(want));
      append(format, item(got));
      EXPECT_EQ(std::memcmp(want_k.data(), got_k.data(), bytes), 0);
      EXPECT_EQ(std::memcmp(want_v.data(), got_v.data(), bytes), 0);
      EXPECT_TRUE(got_k.guards_intact());
      EXPECT_TRUE(got_v.guards_intact());
    }
  }
}

TEST_P(AppendTest, ErrorOfTheStoredRowIsWithinTheType) {
  const std::vector<std::pair<KvType, double>> types{
      {KvType::f32, 0}, {KvType::f16, 0x1p-11}, {KvType::bf16, 0x1p-8}, {KvType::q8_0, 0.5 / 127 * 1.001}};
  const std::size_t dim = 64;
  for (const auto& [type, epsilon] : types) {
    TestHead head({type, 64}, 20, random_);
    head.k_rows = normals(20 * dim);
    head.v_rows = normals(20 * dim);
    HeadView view = head.view();
    append(head.format,
           {.head = &view, .k = head.k_rows.data(), .v = head.v_rows.data(), .row_stride = dim, .slot = 0, .rows = 20});
    for (std::int32_t slot = 0; slot < 20; ++slot) {
      const float* row = head.k_rows.data() + static_cast<std::size_t>(slot) * dim;
      float largest = 0;
      for (std::size_t i = 0; i < dim; ++i) largest = std::max(largest, std::fabs(row[i]));
      for (std::size_t i = 0; i < dim; ++i) {
        std::vector<float> unit(dim, 0.0F);
        unit[i] = 1;
        float stored = 0;
        score(head.format, {.head = &view,
                            .query = unit.data(),
                            .begin = slot,
                            .end = slot + 1,
                            .scores = &stored - slot,
                            .score_stride = 1});
        const double allowed = epsilon * (type == KvType::q8_0 ? largest : std::fabs(row[i]));
        EXPECT_NEAR(stored, row[i], allowed);
      }
    }
  }
}

TEST_P(AppendTest, TinyRowsOfQ8) {
  const float largest[] = {1e-45F, 1e-42F, 1e-38F, 1.49e-36F, 1.5e-36F, 1e-30F};
  constexpr std::size_t kDim = 16, kRows = std::size(largest);
  std::vector<float> rows;
  for (const float most : largest) {
    for (std::size_t i = 0; i < kDim; ++i) rows.push_back(most * (8.0F - static_cast<float>(i)) / 8.0F);
  }
  const KvFormat format{KvType::q8_0, kDim};
  const std::vector<PageId> pages{0};
  std::vector<std::byte> want(format.page_bytes()), want_v = want, got = want, got_v = want;
  const auto view = [&](std::vector<std::byte>& k, std::vector<std::byte>& v) {
    return HeadView{.k_plane = k.data(), .v_plane = v.data(), .pages = pages.data(), .slots = kRows};
  };
  const HeadView want_view = view(want, want_v), view_of_got = view(got, got_v);
  AppendItem item{.head = &want_view, .k = rows.data(), .v = rows.data(), .row_stride = kDim, .rows = kRows};
  ref::append(format, item);
  item.head = &view_of_got;
  append(format, item);
  EXPECT_EQ(got, want);
  EXPECT_EQ(got_v, want_v);
  for (std::size_t r = 0; r < kRows; ++r) {
    const std::vector<double> stored = ref::read_row(format, view_of_got, got.data(), static_cast<std::int32_t>(r));
    const double error = largest[r] < kLeastOfQ8 ? largest[r] : largest[r] * 0.5 / 127 * 1.001;
    for (std::size_t i = 0; i < kDim; ++i) EXPECT_NEAR(stored[i], rows[r * kDim + i], error) << "row " << r;
  }
}

TEST_P(AppendTest, NanRowOfQ8Shows) {
  TestHead head({KvType::q8_0, 16}, 2, random_);
  head.fill(random_);
  auto row = normals(16);
  row[3] = kNan;
  const HeadView view = head.view();
  append(head.format, {.head = &view, .k = row.data(), .v = row.data(), .row_stride = 16, .slot = 1, .rows = 1});
  const auto query = normals(16);
  std::vector<float> scores(2);
  score(head.format,
        {.head = &view, .query = query.data(), .begin = 0, .end = 2, .scores = scores.data(), .score_stride = 2});
  EXPECT_TRUE(std::isfinite(scores[0]));
  EXPECT_TRUE(std::isnan(scores[1]));
}

INSTANTIATE_TEST_SUITE_P(Targets, AppendTest, testing::ValuesIn(machine_targets()), target_label);

}  // namespace
}  // namespace glimpse::kernels::test
