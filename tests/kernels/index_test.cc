// The arithmetic of indices over keys against plain loops in double, on every instruction set of this machine.
#include "glimpse/kernels/index.h"

#include "fixture.h"
#include "glimpse/kernels/ref/index_ref.h"

namespace glimpse::kernels::test {
namespace {

constexpr int kDims[] = {8, 24, 64, 80, 128, 256};

class IndexKernel : public KernelTest {
 protected:
  /// `values` in a 16-bit type, and what is left of them as floats.
  std::vector<std::byte> stored(KvType type, std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * (type == KvType::f32 ? 4 : 2));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (type == KvType::f32) {
        std::memcpy(&bytes[4 * i], &values[i], 4);
        continue;
      }
      const std::uint16_t half = type == KvType::f16 ? f16_from_float(values[i]) : bf16_from_float(values[i]);
      std::memcpy(&bytes[2 * i], &half, 2);
      values[i] = type == KvType::f16 ? float_from_f16(half) : float_from_bf16(half);
    }
    return bytes;
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, IndexKernel, testing::ValuesIn(machine_targets()), target_label);

TEST_P(IndexKernel, KeysAreReadAsStored) {
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
    for (const int dim : kDims) {
      TestHead head({type, dim}, 75, random_);
      head.fill(random_, 3);
      const HeadView view = head.view();
      for (const auto& [first, count] : {std::pair{0, 75}, {13, 20}, {16, 16}, {74, 1}, {5, 0}}) {
        const auto size = static_cast<std::size_t>(count) * static_cast<std::size_t>(dim);
        Guarded<float> got(size);
        std::vector<float> expected(size);
        read_keys(head.format, view, first, count, got.data());
        ref::read_keys(head.format, view, first, count, expected.data());
        for (std::size_t i = 0; i < size; ++i) ASSERT_EQ(got[i], expected[i]) << name(type) << ' ' << dim << ' ' << i;
        EXPECT_TRUE(got.guards_intact());
      }
    }
  }
}

TEST_P(IndexKernel, SummariesOfRows) {
  for (const int dim : kDims) {
    for (const int count : {1, 2, 7, 16, 64}) {
      const auto size = static_cast<std::size_t>(dim);
      const std::vector<float> data = normals(size * static_cast<std::size_t>(count), 2);
      const FloatRows rows{data.data(), count, dim};
      Guarded<float> low(size), high(size), mean(size), variance(size);
      std::vector<float> low_ref(size), high_ref(size), mean_ref(size), variance_ref(size);
      row_bounds(rows, low.data(), high.data());
      row_moments(rows, mean.data(), variance.data());
      ref::row_bounds(rows, low_ref.data(), high_ref.data());
      ref::row_moments(rows, mean_ref.data(), variance_ref.data());
      for (std::size_t i = 0; i < size; ++i) {
        ASSERT_EQ(low[i], low_ref[i]);
        ASSERT_EQ(high[i], high_ref[i]);
        ASSERT_NEAR(mean[i], mean_ref[i], 4e-6);
        ASSERT_NEAR(variance[i], variance_ref[i], 4e-5);
      }
      row_moments(rows, low.data(), nullptr);
      EXPECT_EQ(low[0], mean[0]);
      EXPECT_TRUE(low.guards_intact() && high.guards_intact() && mean.guards_intact() && variance.guards_intact());
      // No smaller than the exact one, and no more than a rounding larger.
      const std::vector<float> centre = normals(size);
      const double exact = ref::row_radius(rows, centre.data());
      const float radius = row_radius(rows, centre.data());
      EXPECT_GE(radius, exact);
      EXPECT_LE(radius, exact * (1 + 2e-7));
    }
  }
}

TEST_P(IndexKernel, NormalisedRows) {
  std::vector<float> row = normals(64, 30);
  normalise_row(row.data(), 64);
  double squares = 0;
  for (const float x : row) squares += static_cast<double>(x) * x;
  EXPECT_NEAR(squares, 1, 1e-6);
  std::vector<float> zeros(64, 0.0F);
  normalise_row(zeros.data(), 64);
  EXPECT_EQ(zeros, std::vector<float>(64, 0.0F));
}

TEST_P(IndexKernel, NodeScores) {
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16}) {
    for (const int width : {8, 40, 64, 256, 512}) {
      for (const int group : {1, 2, 3, 5, 8, 16, 17, 32, 33, 200}) {
        const int count = 1 + below(group > 16 ? 40 : 300);
        const auto n = static_cast<std::size_t>(count);
        const auto w = static_cast<std::size_t>(width);
        const auto g = static_cast<std::size_t>(group);
        std::vector<float> values = normals(n * w);
        const std::vector<std::byte> rows = stored(type, values);
        const std::vector<float> queries = normals(g * w);
        std::vector<float> norms = normals(g), radii = normals(n);
        for (std::vector<float>* positive : {&norms, &radii}) {
          for (float& x : *positive) x = std::fabs(x);
        }
        for (int what = 0; what < 4; ++what) {
          Guarded<float> got(n);
          std::vector<float> expected(n);
          NodeScoreItem item{.rows = rows.data(), .type = type, .width = width, .count = count};
          item.queries = queries.data();
          item.group = group;
          item.scale = 0.125F;
          item.pooling = what % 2 == 0 ? NodePooling::max : NodePooling::mean;
          if (what / 2 == 1) {
            item.radii = radii.data();
            item.norms = norms.data();
          }
          item.scores = got.data();
          score_nodes(item);
          item.scores = expected.data();
          ref::score_nodes(item);
          for (std::size_t i = 0; i < n; ++i) {
            ASSERT_NEAR(got[i], expected[i], 3e-5) << name(type) << ' ' << width << ' ' << group << ' ' << what;
          }
          EXPECT_TRUE(got.guards_intact());
        }
      }
    }
  }
}

TEST_P(IndexKernel, DigestScores) {
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16}) {
    for (const int dim : {8, 40, 64, 128, 256}) {
      for (const int group : {1, 2, 3, 4, 5, 7, 8, 16, 17, 32, 33, 200}) {
        const int held = 1 + below(group > 16 ? 70 : 150);
        const int first = below(held);
        const int count = 1 + below(held - first);
        const auto d = static_cast<std::size_t>(dim), g = static_cast<std::size_t>(group);
        const auto n = static_cast<std::size_t>((held + kDigestTile - 1) / kDigestTile * kDigestTile);
        std::vector<float> values = normals(n * d * 2);
        const std::vector<std::byte> tiles = stored(type, values);
        std::vector<float> queries = normals(g * d);
        queries[0] = 0;
        std::vector<float> norms = normals(g), radii = normals(n), variances = normals(n * d), squares = normals(g * d);
        for (std::vector<float>* positive : {&norms, &radii, &variances, &squares}) {
          for (float& x : *positive) x = std::fabs(x);
        }
        for (int what = 0; what < 8; ++what) {
          Guarded<float> got(static_cast<std::size_t>(count));
          std::vector<float> expected(static_cast<std::size_t>(count));
          DigestScoreItem item{.tiles = tiles.data(), .type = type, .bounds = what / 2 == 0, .dim = dim};
          // The reference takes the larger product, the kernel the bound by the query's sign.
          std::vector<std::byte> ordered;
          if (item.bounds) {
            std::vector<float> sorted = values;
            for (std::size_t tile = 0; tile < n / kDigestTile; ++tile) {
              for (std::size_t i = 0; i < d * kDigestTile; ++i) {
                const std::size_t low = (tile * d + i / kDigestTile) * 2 * kDigestTile + i % kDigestTile;
                if (sorted[low] > sorted[low + kDigestTile]) std::swap(sorted[low], sorted[low + kDigestTile]);
              }
            }
            ordered = stored(type, sorted);
            item.tiles = ordered.data();
          }
          item.first = first;
          item.count = count;
          item.queries = queries.data();
          item.group = group;
          item.scale = 0.125F;
          item.pooling = what % 2 == 0 ? NodePooling::max : NodePooling::mean;
          if (what / 2 == 1) {
            item.radii = radii.data();
            item.norms = norms.data();
          }
          if (what / 2 == 2) {
            item.variances = variances.data();
            item.squares = squares.data();
          }
          item.scores = got.data();
          score_digests(item);
          item.scores = expected.data();
          ref::score_digests(item);
          for (std::size_t i = 0; i < expected.size(); ++i) {
            ASSERT_NEAR(got[i], expected[i], 3e-5) << name(type) << ' ' << dim << ' ' << group << ' ' << what;
          }
          EXPECT_TRUE(got.guards_intact());
        }
      }
    }
  }
}

TEST_P(IndexKernel, Assignment) {
  for (const int dim : kDims) {
    for (const int clusters : {1, 2, 23, 24, 25, 48, 49, 130}) {
      const int count = 1 + below(dim == 256 ? 300 : 70);  // 128 rows of 256 are a block
      const auto n = static_cast<std::size_t>(count);
      const auto d = static_cast<std::size_t>(dim);
      const std::vector<float> rows = normals(n * d);
      const std::vector<float> centroids = normals(static_cast<std::size_t>(clusters) * d);
      Guarded<std::int32_t> nearest(n);
      Guarded<float> products(n);
      std::vector<std::int32_t> nearest_ref(n);
      std::vector<float> products_ref(n);
      std::vector<std::byte> workspace(assign_workspace(dim));
      AssignItem item{rows.data(), count, centroids.data(), clusters, dim, nearest.data(), products.data()};
      assign_rows(item, workspace);
      item.nearest = nearest_ref.data();
      item.products = products_ref.data();
      ref::assign_rows(item);
      for (std::size_t r = 0; r < n; ++r) {
        const double bound = 1e-5 * std::sqrt(dim) * 4;
        ASSERT_NEAR(products[r], products_ref[r], bound);
        if (nearest[r] == nearest_ref[r]) continue;
        // Only where two products are equal but for rounding.
        double product = 0;
        for (std::size_t i = 0; i < d; ++i) {
          product += static_cast<double>(rows[r * d + i]) * centroids[static_cast<std::size_t>(nearest[r]) * d + i];
        }
        ASSERT_NEAR(product, products_ref[r], bound);
      }
      EXPECT_TRUE(nearest.guards_intact() && products.guards_intact());
    }
  }
}

TEST_P(IndexKernel, RowsOfFactors) {
  constexpr std::size_t kTokens = 40;
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16}) {
    for (const int dim : kDims) {
      for (const int rank : {1, 13, 160, 256, 300}) {
        const std::size_t columns = static_cast<std::size_t>(rank) + 3;  // fewer are wanted than there are
        std::vector<float> u = normals(kTokens * columns);
        const std::vector<std::byte> bytes = stored(type, u);
        const std::vector<float> basis = normals(static_cast<std::size_t>(rank) * static_cast<std::size_t>(dim));
        std::vector<std::int32_t> positions;
        for (std::int32_t at = below(4); at < static_cast<std::int32_t>(kTokens); at += 1 + below(5)) {
          positions.push_back(at);
        }
        const std::size_t size = positions.size() * static_cast<std::size_t>(dim);
        Guarded<float> got(size), alone(static_cast<std::size_t>(dim));
        std::vector<float> expected(size);
        FactorItem item{bytes.data(), type, bytes.size() / kTokens, positions, basis.data(), rank, dim, got.data()};
        multiply_factors(item);
        item.out = expected.data();
        ref::multiply_factors(item);
        const double bound = 1e-6 * std::sqrt(rank) * 8;
        for (std::size_t i = 0; i < size; ++i) {
          ASSERT_NEAR(got[i], expected[i], bound) << rank << ' ' << dim << ' ' << i;
        }
        item.positions = std::span(positions).last(1);
        item.out = alone.data();
        multiply_factors(item);
        for (std::size_t i = 0; i < alone.size(); ++i) ASSERT_EQ(alone.data()[i], got.data()[size - alone.size() + i]);
        EXPECT_TRUE(got.guards_intact() && alone.guards_intact());
      }
    }
  }
}

TEST_P(IndexKernel, AssignmentTakesTheLowerOfEqualCentroids) {
  const std::vector<float> row = normals(3 * 16);
  std::vector<float> centroids = normals(60 * 16, 1e-3F);
  for (const std::size_t same : {std::size_t{7}, std::size_t{8}, std::size_t{40}, std::size_t{59}}) {
    for (std::size_t i = 0; i < 16; ++i) centroids[same * 16 + i] = row[16 + i];
  }
  std::int32_t nearest[3];
  float products[3];
  std::vector<std::byte> workspace(assign_workspace(16));
  assign_rows({row.data(), 3, centroids.data(), 60, 16, nearest, products}, workspace);
  EXPECT_EQ(nearest[1], 7);
  // Products below zero: the zeros behind the last centroid are no candidates. Rows that are no numbers get one too.
  for (float& x : centroids) x = -std::fabs(x);
  const std::vector<float> positive(16, 1.0F), bad(16, kNan);
  assign_rows({positive.data(), 1, centroids.data(), 5, 16, nearest, products}, workspace);
  EXPECT_LT(products[0], 0);
  assign_rows({bad.data(), 1, centroids.data(), 5, 16, nearest, products}, workspace);
  EXPECT_EQ(nearest[0], 0);
}

}  // namespace
}  // namespace glimpse::kernels::test
