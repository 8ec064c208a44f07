// Eigenvalues and eigenvectors of a symmetric matrix: Householder's tridiagonal form, then QL steps with implicit
// shifts. In double, on the calling thread, the same bits for the same matrix. Any thread.
#pragma once

#include <cstddef>
#include <vector>

namespace glimpse::kv {

struct Eigen {
  std::vector<double> values;   ///< [n] descending
  std::vector<double> vectors;  ///< [n, n], a row each, of length 1 and at right angles
};

/// `matrix` [n, n] is symmetric; taken by value because the reduction overwrites it.
Eigen symmetric_eigen(std::vector<double> matrix, std::size_t n);

}  // namespace glimpse::kv
