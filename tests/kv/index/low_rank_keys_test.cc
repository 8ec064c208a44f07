// Eigenvectors and low-rank keys against what defines them, in double: A v = lambda v, rows at right angles, and of all
// approximations of a rank the one whose squared error is the sum of the eigenvalues left out (Eckart and Young).
#include "glimpse/kv/index/low_rank_keys.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "glimpse/kv/index/symmetric_eigen.h"
#include "support.h"

namespace glimpse::kv {
namespace {

using testing::Keys;

std::vector<double> random_symmetric(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> matrix(n * n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) matrix[i * n + j] = matrix[j * n + i] = normal(random);
  }
  return matrix;
}

void expect_eigen(const std::vector<double>& matrix, std::size_t n) {
  const EigenPairs eigen = symmetric_eigen(matrix, n);
  ASSERT_EQ(eigen.values.size(), n);
  double largest = 1e-300;
  for (const double x : matrix) largest = std::max(largest, std::abs(x));
  for (std::size_t a = 0; a < n; ++a) {
    if (a > 0) {
      ASSERT_GE(eigen.values[a - 1], eigen.values[a]);
    }
    for (std::size_t i = 0; i < n; ++i) {
      double product = 0, angle = 0;
      for (std::size_t j = 0; j < n; ++j) {
        product += matrix[i * n + j] * eigen.vectors[a * n + j];
        angle += eigen.vectors[i * n + j] * eigen.vectors[a * n + j];
      }
      ASSERT_NEAR(product, eigen.values[a] * eigen.vectors[a * n + i], 1e-11 * largest * static_cast<double>(n));
      ASSERT_NEAR(angle, i == a ? 1 : 0, 1e-12 * static_cast<double>(n));
    }
  }
}

TEST(SymmetricEigen, SolvesWhatDefinesIt) {
  for (const std::size_t n : {1, 2, 3, 8, 33, 96}) expect_eigen(random_symmetric(n, static_cast<std::uint32_t>(n)), n);
}

TEST(SymmetricEigen, DegenerateMatrices) {
  expect_eigen(std::vector<double>(64, 0.0), 8);
  std::vector<double> diagonal(64, 0.0);
  for (std::size_t i = 0; i < 8; ++i) diagonal[i * 9] = i < 4 ? 2.0 : -1.0;
  expect_eigen(diagonal, 8);
  expect_eigen(std::vector<double>(64, 1.0), 8);  // rank 1
  std::vector<double> graded = random_symmetric(24, 9);
  for (std::size_t i = 0; i < 24; ++i) {
    for (std::size_t j = 0; j < 24; ++j) graded[i * 24 + j] *= std::pow(10.0, -static_cast<double>(i + j) / 4);
  }
  expect_eigen(graded, 24);
}

TEST(SymmetricEigen, WhatIsNotFiniteHasNone) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    std::vector<double> matrix = random_symmetric(8, 5);
    matrix[3 * 8 + 2] = matrix[2 * 8 + 3] = bad;
    const EigenPairs eigen = symmetric_eigen(matrix, 8);
    ASSERT_EQ(eigen.values.size(), 8U);
    ASSERT_EQ(eigen.vectors.size(), 64U);
    for (const double value : eigen.values) EXPECT_TRUE(std::isnan(value));
    for (const double value : eigen.vectors) EXPECT_TRUE(std::isnan(value));
  }
}

constexpr int kDim = 16;
constexpr int kHeads = 3;
constexpr std::int64_t kTokens = 203;

/// Keys of three heads with a spectrum that falls, and a "RoPE" that is undone by halving.
struct Layer {
  explicit Layer(KvType type) : format{type, kDim} {
    std::mt19937 random(21);
    std::normal_distribution<float> normal;
    std::vector<std::vector<float>> mixing(kHeads * kDim, std::vector<float>(kHeads * kDim));
    for (auto& row : mixing) {
      for (float& x : row) x = normal(random);
    }
    for (int head = 0; head < kHeads; ++head) heads.emplace_back(format, kTokens);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      std::vector<float> row(kHeads * kDim, 0.0F);
      for (std::size_t k = 0; k < mixing.size(); ++k) {
        const float weight = normal(random) * std::pow(0.85F, static_cast<float>(k));
        for (std::size_t i = 0; i < row.size(); ++i) row[i] += weight * mixing[k][i];
      }
      for (int head = 0; head < kHeads; ++head) {
        heads[static_cast<std::size_t>(head)].append({row.begin() + head * kDim, row.begin() + (head + 1) * kDim});
      }
    }
    for (Keys& head : heads) views.push_back(head.view());
    keys = {views, format, kTokens, [](std::int64_t, float* row) {
              for (int i = 0; i < kDim; ++i) row[i] /= 2;
            }};
  }
  double cached(int head, std::int64_t t, int i) {
    return heads[static_cast<std::size_t>(head)].key(t)[static_cast<std::size_t>(i)] / 2;
  }

  kernels::KvFormat format;
  std::vector<Keys> heads;
  std::vector<kernels::HeadView> views;
  LayerKeys keys;
};

/// Squared error over all tokens and heads of what `rank` columns give, and of the squared keys.
std::pair<double, double> errors(Layer& layer, const LowRankKeys& low, int rank) {
  std::vector<std::int32_t> positions(kTokens);
  std::iota(positions.begin(), positions.end(), 0);
  double error = 0, squares = 0;
  for (int head = 0; head < kHeads; ++head) {
    std::vector<float> rows(kTokens * kDim);
    low.read({head, rank, positions, rows.data()});
    for (std::int64_t t = 0; t < kTokens; ++t) {
      for (int i = 0; i < kDim; ++i) {
        const double key = layer.cached(head, t, i);
        const double off = static_cast<double>(rows[static_cast<std::size_t>(t * kDim + i)]) - key;
        error += off * off;
        squares += key * key;
      }
    }
  }
  return {error, squares};
}

TEST(LowRankKeys, TheFullRankGivesTheKeysBack) {
  for (const auto& [type, tolerance] :
       {std::pair{KvType::f32, 1e-6}, {KvType::f16, 1e-3}, {KvType::bf16, 8e-3}, {KvType::q8_0, 8e-3}}) {
    Layer layer(type);
    const LowRankKeys low(layer.keys, kHeads * kDim);
    const auto [error, squares] = errors(layer, low, kHeads * kDim);
    EXPECT_LT(std::sqrt(error / squares), tolerance) << name(type);
  }
}

TEST(LowRankKeys, TheErrorIsTheEigenvaluesLeftOut) {
  Layer layer(KvType::f32);
  constexpr std::size_t n = kHeads * kDim;
  std::vector<double> gram(n * n, 0.0);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    std::vector<double> row;
    for (int head = 0; head < kHeads; ++head) {
      for (int i = 0; i < kDim; ++i) row.push_back(layer.cached(head, t, i));
    }
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) gram[i * n + j] += row[i] * row[j];
    }
  }
  const std::vector<double> values = symmetric_eigen(gram, n).values;
  const LowRankKeys all(layer.keys, static_cast<int>(n));
  double before = std::numeric_limits<double>::infinity();
  for (const int rank : {1, 2, 5, 12, 30, 47}) {
    const auto [error, squares] = errors(layer, LowRankKeys(layer.keys, rank), rank);
    const double left = std::accumulate(values.begin() + rank, values.end(), 0.0);
    EXPECT_NEAR(error, left, 1e-5 * squares) << rank;
    EXPECT_LT(error, before) << rank;
    before = error;
    EXPECT_NEAR(errors(layer, all, rank).first, error, 1e-6 * squares) << "the first columns of a larger rank";
  }
}

/// What a device multiplied stands for the keys as what the host did.
TEST(LowRankKeys, MadeOfProductsOfOthersTheyStandForTheKeysAsWell) {
  Layer layer(KvType::bf16);
  constexpr std::size_t n = kHeads * kDim;
  constexpr int kRank = 20;
  std::vector<double> gram(n * n, 0.0), rows;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (int head = 0; head < kHeads; ++head) {
      for (int i = 0; i < kDim; ++i) rows.push_back(layer.cached(head, t, i));
    }
    const double* const row = rows.data() + static_cast<std::size_t>(t) * n;
    for (std::size_t i = 0; i < n * n; ++i) gram[i] += row[i / n] * row[i % n];
  }
  const std::vector<float> directions = LowRankKeys::directions(gram, n, kRank);
  std::vector<std::byte> factors;
  for (std::size_t t = 0; t < kTokens; ++t) {
    for (std::size_t k = 0; k < kRank; ++k) {
      double sum = 0;
      for (std::size_t i = 0; i < n; ++i) sum += rows[t * n + i] * static_cast<double>(directions[i * kRank + k]);
      const std::uint16_t bits = bf16_from_float(static_cast<float>(sum));
      const auto* const bytes = reinterpret_cast<const std::byte*>(&bits);
      factors.insert(factors.end(), bytes, bytes + sizeof bits);
    }
  }
  const LowRankKeys made(LowRankKeys::Made{kDim, KvType::bf16, kTokens, kRank, directions, factors});
  const LowRankKeys host(layer.keys, kRank);
  EXPECT_EQ(made.rank(), kRank);
  EXPECT_EQ(made.tokens(), kTokens);
  EXPECT_EQ(made.bytes(), host.bytes());
  const auto [error, squares] = errors(layer, made, kRank);
  EXPECT_NEAR(error, errors(layer, host, kRank).first, 1e-4 * squares);
}

TEST(LowRankKeys, ReadsWhatItsFactorsSay) {
  Layer layer(KvType::bf16);
  const LowRankKeys low(layer.keys, 20);
  const std::vector<std::int32_t> positions{3, 4, 77, 78, 79, 150, 202};
  for (int head = 0; head < kHeads; ++head) {
    std::vector<float> rows(positions.size() * kDim);
    low.read({head, 13, positions, rows.data()});
    for (std::size_t p = 0; p < positions.size(); ++p) {
      const std::vector<float> u = low.coefficients(positions[p]);
      ASSERT_EQ(u.size(), 20u);
      for (std::size_t i = 0; i < kDim; ++i) {
        double expected = 0;
        for (std::size_t k = 0; k < 13; ++k) {
          expected += static_cast<double>(u[k]) * static_cast<double>(low.basis(head)[k * kDim + i]);
        }
        EXPECT_NEAR(rows[p * kDim + i], expected, 1e-5);
      }
    }
  }
  EXPECT_EQ(low.row_bytes(13), 26u);
  EXPECT_EQ(low.bytes(), kTokens * 20 * 2 + 20 * kHeads * kDim * sizeof(float));
}

}  // namespace
}  // namespace glimpse::kv
