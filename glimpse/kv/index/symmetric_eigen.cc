#include "glimpse/kv/index/symmetric_eigen.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "glimpse/base/error.h"

namespace glimpse::kv {
namespace {

constexpr int kMostSteps = 64;  ///< of QL for one eigenvalue; two are usual

/// to[0, n) += factor * from[0, n)
void add_scaled(double factor, const double* from, double* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

/// matrix = rows^T T rows with T tridiagonal: its diagonal, and off[i] between i and i + 1. All loops run along rows,
/// which symmetry allows.
void reduce(std::vector<double>& matrix, std::size_t n, std::vector<double>& off, std::vector<double>& rows) {
  std::vector<double> v(n), w(n);
  for (std::size_t k = 0; k + 1 < n; ++k) {
    double* row = matrix.data() + k * n;
    const std::size_t first = k + 1;
    double rest = 0;
    for (std::size_t i = first + 1; i < n; ++i) rest += row[i] * row[i];
    if (rest == 0) {  // nothing to reflect away
      off[k] = row[first];
      continue;
    }
    const double length = std::sqrt(rest + row[first] * row[first]);
    off[k] = row[first] > 0 ? -length : length;
    std::copy(row + first, row + n, v.begin() + static_cast<std::ptrdiff_t>(first));
    v[first] -= off[k];
    const double beta = 2 / (rest + v[first] * v[first]);
    const std::size_t left = n - first;
    // A <- H A H, H = 1 - beta v v^T:  A - v w^T - w v^T,  w = beta A v - (beta^2 / 2) (v.A v) v
    std::fill(w.begin(), w.end(), 0.0);
    for (std::size_t i = first; i < n; ++i) add_scaled(beta * v[i], &matrix[i * n + first], &w[first], left);
    double product = 0;
    for (std::size_t i = first; i < n; ++i) product += v[i] * w[i];
    add_scaled(-beta / 2 * product, &v[first], &w[first], left);
    for (std::size_t i = first; i < n; ++i) {
      add_scaled(-v[i], &w[first], &matrix[i * n + first], left);
      add_scaled(-w[i], &v[first], &matrix[i * n + first], left);
    }
    // rows <- H rows
    std::fill(w.begin(), w.end(), 0.0);
    for (std::size_t i = first; i < n; ++i) add_scaled(beta * v[i], &rows[i * n], w.data(), n);
    for (std::size_t i = first; i < n; ++i) add_scaled(-v[i], w.data(), &rows[i * n], n);
  }
}

/// Makes the tridiagonal matrix diagonal, turning `rows` along.
void diagonalise(std::vector<double>& diagonal, std::vector<double>& off, std::vector<double>& rows) {
  const std::size_t n = diagonal.size();
  const double epsilon = std::numeric_limits<double>::epsilon();
  for (std::size_t l = 0; l < n; ++l) {
    for (int step = 0;; ++step) {
      std::size_t m = l;
      while (m + 1 < n && std::abs(off[m]) > epsilon * (std::abs(diagonal[m]) + std::abs(diagonal[m + 1]))) ++m;
      if (m == l) break;
      check(step < kMostSteps, "the eigenvalues of a finite symmetric matrix are found");
      // Wilkinson's shift: the eigenvalue of the leading 2 x 2 block nearest to diagonal[l].
      const double half = (diagonal[l + 1] - diagonal[l]) / (2 * off[l]);
      const double root = std::hypot(half, 1.0);
      double g = diagonal[m] - diagonal[l] + off[l] / (half + std::copysign(root, half));
      double sine = 1, cosine = 1, shift = 0;
      bool split = false;
      for (std::size_t i = m; i-- > l;) {
        const double f = sine * off[i];
        const double b = cosine * off[i];
        const double r = std::hypot(f, g);
        off[i + 1] = r;
        if (r == 0) {  // underflow: the matrix falls apart here
          diagonal[i + 1] -= shift;
          off[m] = 0;
          split = true;
          break;
        }
        sine = f / r;
        cosine = g / r;
        g = diagonal[i + 1] - shift;
        const double s = (diagonal[i] - g) * sine + 2 * cosine * b;
        shift = sine * s;
        diagonal[i + 1] = g + shift;
        g = cosine * s - b;
        double* upper = rows.data() + (i + 1) * n;
        double* lower = rows.data() + i * n;
        for (std::size_t k = 0; k < n; ++k) {
          const double above = upper[k];
          upper[k] = sine * lower[k] + cosine * above;
          lower[k] = cosine * lower[k] - sine * above;
        }
      }
      if (split) continue;
      diagonal[l] -= shift;
      off[l] = g;
      off[m] = 0;
    }
  }
}

}  // namespace

Eigen symmetric_eigen(std::vector<double> matrix, std::size_t n) {
  check(matrix.size() == n * n, "the matrix is square");
  std::vector<double> rows(n * n, 0.0), off(n, 0.0), diagonal(n);
  for (std::size_t i = 0; i < n; ++i) rows[i * n + i] = 1;
  reduce(matrix, n, off, rows);
  for (std::size_t i = 0; i < n; ++i) diagonal[i] = matrix[i * n + i];
  off.push_back(0);
  diagonalise(diagonal, off, rows);
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return diagonal[a] > diagonal[b]; });
  Eigen eigen;
  eigen.vectors.reserve(n * n);
  for (const std::size_t from : order) {
    eigen.values.push_back(diagonal[from]);
    const auto row = rows.begin() + static_cast<std::ptrdiff_t>(from * n);
    eigen.vectors.insert(eigen.vectors.end(), row, row + static_cast<std::ptrdiff_t>(n));
  }
  return eigen;
}

}  // namespace glimpse::kv
