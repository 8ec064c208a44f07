#include "glimpse/kv/index/symmetric_eigen.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <limits>

#include "glimpse/base/error.h"

namespace glimpse::kv {

EigenPairs symmetric_eigen(const std::vector<double>& matrix, std::size_t n) {
  check(matrix.size() == n * n, "the matrix is square");
  // The library would try all of its steps on these, which takes minutes for a wide matrix.
  if (!std::all_of(matrix.begin(), matrix.end(), [](double x) { return std::isfinite(x); })) {
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    return {std::vector<double>(n, kNone), std::vector<double>(n * n, kNone)};
  }
  const auto size = static_cast<Eigen::Index>(n);
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(
      Eigen::Map<const Eigen::MatrixXd>(matrix.data(), size, size));
  check(solver.info() == Eigen::Success, "the eigenvalues of a finite symmetric matrix are found");
  EigenPairs pairs;
  pairs.values.reserve(n);
  pairs.vectors.reserve(n * n);
  for (Eigen::Index i = size; i-- > 0;) {  // the library's ascend
    pairs.values.push_back(solver.eigenvalues()(i));
    const double* column = solver.eigenvectors().col(i).data();
    pairs.vectors.insert(pairs.vectors.end(), column, column + n);
  }
  return pairs;
}

}  // namespace glimpse::kv
