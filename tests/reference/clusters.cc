#include <algorithm>
#include <cmath>
#include <random>

#include "tests/reference/methods.h"

namespace glimpse::methods {
namespace {

Row direction(Row row) {
  const double length = std::sqrt(dot(row, row));
  for (double& x : row) x = length > 0 ? x / length : x;
  return row;
}

/// The centroid of the largest product with each row.
Set nearest(const Rows& rows, const Rows& centroids) {
  Set members;
  for (const Row& row : rows) {
    Scores products;
    for (const Row& centroid : centroids) products.push_back(dot(row, centroid));
    members.push_back(static_cast<std::int32_t>(std::max_element(products.begin(), products.end()) - products.begin()));
  }
  return members;
}

/// The next row with a chance in proportion to its squared distance to the nearest centroid; on the unit sphere the
/// square is 2 - 2 cos.
Rows plus_plus(const Rows& directions, std::size_t clusters, std::mt19937& random) {
  Rows centroids{directions[random() % directions.size()]};
  std::vector<double> squares(directions.size(), 4);
  while (centroids.size() < std::min(clusters, directions.size())) {
    for (std::size_t r = 0; r < directions.size(); ++r) {
      squares[r] = std::clamp(2 - 2 * dot(directions[r], centroids.back()), 0.0, squares[r]);
    }
    std::discrete_distribution<std::size_t> chance(squares.begin(), squares.end());
    centroids.push_back(directions[chance(random)]);
  }
  return centroids;
}

}  // namespace

Set spherical_clusters(const Rows& rows, std::int64_t clusters, std::uint32_t seed) {
  Rows directions;
  for (const Row& row : rows) directions.push_back(direction(row));
  std::mt19937 random(seed);
  Rows centroids = plus_plus(directions, static_cast<std::size_t>(clusters), random);
  Set members = nearest(rows, centroids);
  for (int round = 0; round < 10; ++round) {
    for (std::size_t c = 0; c < centroids.size(); ++c) {
      Row sum(rows[0].size());
      for (std::size_t r = 0; r < rows.size(); ++r) {
        if (members[r] != static_cast<std::int32_t>(c)) continue;
        for (std::size_t x = 0; x < sum.size(); ++x) sum[x] += rows[r][x];
      }
      if (dot(sum, sum) > 0) centroids[c] = direction(sum);
    }
    members = nearest(rows, centroids);
  }
  return members;
}

double cluster_cohesion(const Rows& rows, const Set& members) {
  const std::int32_t clusters = *std::max_element(members.begin(), members.end()) + 1;
  Rows sums(static_cast<std::size_t>(clusters), Row(rows[0].size()));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    Row& sum = sums[static_cast<std::size_t>(members[r])];
    for (std::size_t x = 0; x < sum.size(); ++x) sum[x] += rows[r][x];
  }
  double cosines = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    cosines += dot(direction(rows[r]), direction(sums[static_cast<std::size_t>(members[r])]));
  }
  return cosines / static_cast<double>(rows.size());
}

}  // namespace glimpse::methods
