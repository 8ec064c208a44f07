// Eigenvalues and eigenvectors of a symmetric matrix, by the library Eigen, whose headers only this file's source
// includes. In double, on the calling thread, the same bits for the same matrix. Any thread.
#pragma once

#include <cstddef>
#include <vector>

namespace glimpse::kv {

struct EigenPairs {
  std::vector<double> values;   ///< [n] descending
  std::vector<double> vectors;  ///< [n, n], a row each, of length 1 and at right angles
};

/// `matrix` [n, n] is symmetric. All values and vectors are NaN where one of its numbers is not finite.
EigenPairs symmetric_eigen(const std::vector<double>& matrix, std::size_t n);

}  // namespace glimpse::kv
