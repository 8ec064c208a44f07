// The leading directions of symmetric matrices, against all of their eigenvectors.
#include "glimpse/kernels/cuda/subspace.h"

#include <functional>

#include "device_bed.h"
#include "glimpse/base/size.h"
#include "glimpse/kv/index/symmetric_eigen.h"

namespace glimpse::kernels::cuda::test {
namespace {

using Matrix = std::vector<double>;  ///< [rows, columns]

/// M^T diag(spectrum) M with random M: near the spectrum where that is steep.
Matrix matrix_of(std::size_t n, std::uint32_t seed, const std::function<double(std::size_t)>& spectrum) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 1 / std::sqrt(static_cast<double>(n)));
  Matrix made(n * n, 0.0);
  std::vector<double> row(n);
  for (std::size_t k = 0; k < n; ++k) {
    const double weight = spectrum(k);
    for (double& x : row) x = normal(random);
    if (weight == 0) continue;
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) made[i * n + j] += weight * row[i] * row[j];
    }
  }
  return made;
}

double trace(const Matrix& matrix, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += matrix[i * n + i];
  return sum;
}

class SubspaceTest : public CudaTest {
 protected:
  struct Found {
    std::vector<Matrix> bases;   ///< [n, columns]
    std::vector<Matrix> turned;  ///< the first directions [n, rank]
  };

  Found find(const std::vector<Matrix>& matrices, std::size_t n, int rank) {
    const std::size_t count = matrices.size(), columns = size(subspace_columns(rank)), kept = size(rank);
    Matrix all;
    for (const Matrix& matrix : matrices) all.insert(all.end(), matrix.begin(), matrix.end());
    const Array<double> device(*stream_, all), basis(*stream_, count * n * columns),
        images(*stream_, count * n * columns);
    const Array<double> products(*stream_, count * columns * columns), solved(*stream_, count * columns * columns);
    find_subspace(*stream_, {.matrices = device.constant(),
                             .count = static_cast<int>(count),
                             .width = static_cast<int>(n),
                             .columns = static_cast<int>(columns),
                             .basis = basis.pointer(),
                             .images = images.pointer(),
                             .products = products.pointer(),
                             .solved = solved.pointer()});
    const Matrix squares = products.values(), found = basis.values();
    Matrix rotations;
    for (std::size_t m = 0; m < count; ++m) {
      const auto from = squares.begin() + static_cast<std::ptrdiff_t>(m * columns * columns);
      const kv::EigenPairs eigen =
          kv::symmetric_eigen({from, from + static_cast<std::ptrdiff_t>(columns * columns)}, columns);
      for (std::size_t c = 0; c < columns; ++c) {
        for (std::size_t k = 0; k < kept; ++k) rotations.push_back(eigen.vectors[k * columns + c]);
      }
    }
    const Array<double> turns(*stream_, rotations), out(*stream_, count * n * kept);
    turn_subspace(*stream_, {.basis = basis.constant(),
                             .count = static_cast<int>(count),
                             .width = static_cast<int>(n),
                             .columns = static_cast<int>(columns),
                             .kept = rank,
                             .rotations = turns.constant(),
                             .out = out.pointer()});
    const Matrix directions = out.values();
    Found result;
    for (std::size_t m = 0; m < count; ++m) {
      const auto basis_at = found.begin() + static_cast<std::ptrdiff_t>(m * n * columns);
      const auto at = directions.begin() + static_cast<std::ptrdiff_t>(m * n * kept);
      result.bases.emplace_back(basis_at, basis_at + static_cast<std::ptrdiff_t>(n * columns));
      result.turned.emplace_back(at, at + static_cast<std::ptrdiff_t>(n * kept));
    }
    return result;
  }
};

double product(const Matrix& matrix, std::size_t columns, std::size_t a, std::size_t b) {
  double sum = 0;
  for (std::size_t i = 0; i < matrix.size() / columns; ++i) sum += matrix[i * columns + a] * matrix[i * columns + b];
  return sum;
}

/// v^T G v of each column.
std::vector<double> energies(const Matrix& matrix, std::size_t n, const Matrix& directions, std::size_t columns) {
  std::vector<double> found(columns, 0.0);
  for (std::size_t k = 0; k < columns; ++k) {
    for (std::size_t i = 0; i < n; ++i) {
      double row = 0;
      for (std::size_t j = 0; j < n; ++j) row += matrix[i * n + j] * directions[j * columns + k];
      found[k] += directions[i * columns + k] * row;
    }
  }
  return found;
}

TEST_F(SubspaceTest, DirectionsLeaveHardlyMoreThanTheBest) {
  struct Shape {
    std::size_t n;
    int rank;
  };
  for (const Shape& of : {Shape{260, 30}, Shape{448, 160}}) {
    SCOPED_TRACE(of.n);
    const std::vector<Matrix> matrices = {
        matrix_of(of.n, 1, [](std::size_t) { return 1.0; }),
        matrix_of(of.n, 2, [](std::size_t k) { return 1 / (1.0 + static_cast<double>(k)); }),
        matrix_of(of.n, 3, [](std::size_t k) { return k == 0 ? 1e6 : std::exp(-static_cast<double>(k) / 60); })};
    const std::size_t kept = size(of.rank), columns = size(subspace_columns(of.rank));
    const Found found = find(matrices, of.n, of.rank);
    for (std::size_t m = 0; m < matrices.size(); ++m) {
      SCOPED_TRACE(m);
      for (std::size_t a = 0; a < columns; ++a) {
        for (std::size_t b = 0; b <= a; ++b) {
          ASSERT_NEAR(product(found.bases[m], columns, a, b), a == b ? 1 : 0, 1e-9);
        }
      }
      const std::vector<double> values = kv::symmetric_eigen(matrices[m], of.n).values;
      const std::vector<double> got = energies(matrices[m], of.n, found.turned[m], kept);
      double least = trace(matrices[m], of.n), left = least;
      for (std::size_t k = 0; k < kept; ++k) {
        if (k > 0) {
          EXPECT_LE(got[k], got[k - 1] * (1 + 1e-9));
        }
        EXPECT_LE(got[k], values[k] * (1 + 1e-9));
        least -= values[k];
        left -= got[k];
      }
      EXPECT_LE(left, 1.001 * least + 1e-9 * trace(matrices[m], of.n));
    }
  }
}

TEST_F(SubspaceTest, WhatHasFewerDirectionsKeepsAll) {
  const std::size_t n = 300;
  const int rank = 40;
  const std::vector<Matrix> matrices = {matrix_of(n, 4, [](std::size_t k) { return k < 17 ? 3.0 : 0.0; }),
                                        matrix_of(n, 6, [](std::size_t k) { return k < 30 ? 3.0 : 3e-14; }),
                                        Matrix(n * n, 0.0)};
  const Found found = find(matrices, n, rank);
  for (std::size_t m = 0; m < matrices.size(); ++m) {
    double sum = 0;
    for (const double energy : energies(matrices[m], n, found.turned[m], size(rank))) sum += energy;
    EXPECT_NEAR(sum, trace(matrices[m], n), 1e-6 * trace(matrices[m], n));
    for (const double x : found.turned[m]) ASSERT_LE(std::abs(x), 1 + 1e-6);
  }
}

TEST_F(SubspaceTest, TheSameBitsAndNoNumbersOfWhatIsNone) {
  const std::size_t n = 280;
  Matrix matrix = matrix_of(n, 5, [](std::size_t k) { return 1 / (1.0 + static_cast<double>(k)); });
  Matrix broken = matrix;
  broken[3 * n + 2] = broken[2 * n + 3] = std::numeric_limits<double>::quiet_NaN();
  const Found found = find({matrix, broken, matrix}, n, 24);
  EXPECT_EQ(found.bases[0], found.bases[2]);
  EXPECT_EQ(found.turned[0], found.turned[2]);
  for (const double x : found.turned[1]) ASSERT_TRUE(std::isnan(x));
  EXPECT_EQ(find({matrix}, n, 24).turned[0], found.turned[0]);
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
