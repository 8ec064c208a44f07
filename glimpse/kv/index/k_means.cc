#include "glimpse/kv/index/k_means.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "glimpse/base/error.h"
#include "glimpse/base/size.h"
#include "glimpse/kernels/index.h"

namespace glimpse::kv {
namespace {

/// Rows that sampled k-means++ looks at: so many for each cluster, and no fewer than the least.
constexpr std::int32_t kSampledRows = 16;
constexpr std::int32_t kLeastSample = 2048;
constexpr std::uint64_t kSeed = 0x6c796368656531ULL;

std::int32_t sample_size(std::int32_t count, std::int32_t clusters) {
  return std::max(kLeastSample, kSampledRows * std::min(clusters, count));
}

/// Rows at random, each at most once.
std::vector<std::int32_t> sample_rows(std::int32_t wanted, std::int32_t count, std::mt19937_64& random) {
  std::vector<std::int32_t> rows(size(count));
  std::iota(rows.begin(), rows.end(), 0);
  wanted = std::min(wanted, count);
  for (std::int32_t i = 0; i < wanted; ++i) {
    const auto left = static_cast<std::uint64_t>(count - i);
    std::swap(rows[size(i)], rows[size(i) + random() % left]);
  }
  rows.resize(size(wanted));
  return rows;
}

/// k-means++: each next row with a chance in proportion to its squared distance to the nearest one chosen.
std::vector<std::int32_t> spread_rows(const KMeansInput& input, std::mt19937_64& random) {
  const auto dim = static_cast<std::size_t>(input.dim);
  std::vector<std::int32_t> rows{static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(input.count))};
  std::vector<float> distances(size(input.count), 2.0F);  // halved: 1 - product of unit rows
  std::vector<float> products(size(input.count));
  while (static_cast<std::int32_t>(rows.size()) < std::min(input.clusters, input.count)) {
    kernels::NodeScoreItem item{.rows = reinterpret_cast<const std::byte*>(input.rows), .type = KvType::f32};
    item.width = input.dim;
    item.count = input.count;
    item.queries = input.rows + size(rows.back()) * dim;
    item.scores = products.data();
    kernels::score_nodes(item);
    distances[size(rows.back())] = 0;
    double sum = 0;
    for (std::size_t i = 0; i < distances.size(); ++i) {
      const float distance = 1 - products[i];
      // Equal rows differ by rounding only.
      distances[i] = distance > 1e-6F ? std::min(distances[i], distance) : 0.0F;
      sum += distances[i];
    }
    if (!(sum > 0)) break;
    const double at = static_cast<double>(random() >> 11) * 0x1p-53 * sum;
    double reached = 0;
    std::int32_t chosen = -1;
    for (std::int32_t i = 0; i < input.count && reached <= at; ++i) {
      if (!(distances[size(i)] > 0)) continue;
      reached += distances[size(i)];
      chosen = i;
    }
    rows.push_back(chosen);
  }
  return rows;
}

/// k-means++ over a sample of the rows, each scaled to length 1.
std::vector<std::int32_t> spread_sampled_rows(const KMeansInput& input, std::mt19937_64& random) {
  const std::vector<std::int32_t> sampled = sample_rows(sample_size(input.count, input.clusters), input.count, random);
  const auto dim = static_cast<std::size_t>(input.dim);
  std::vector<float> directions(sampled.size() * dim);
  for (std::size_t i = 0; i < sampled.size(); ++i) {
    std::copy_n(input.rows + size(sampled[i]) * dim, dim, directions.data() + i * dim);
    kernels::normalise_row(directions.data() + i * dim, input.dim);
  }
  std::vector<std::int32_t> rows =
      spread_rows({directions.data(), static_cast<std::int32_t>(sampled.size()), input.dim, input.clusters}, random);
  for (std::int32_t& row : rows) row = sampled[size(row)];
  return rows;
}

class KMeans {
 public:
  explicit KMeans(const KMeansInput& input)
      : input_(input), dim_(static_cast<std::size_t>(input.dim)), workspace_(kernels::assign_workspace(input.dim)) {
    std::mt19937_64 random(kSeed);
    const auto rows =
        input.seeding == Seeding::plus_plus ? spread_rows(input, random) : spread_sampled_rows(input, random);
    clusters_.count = static_cast<std::int32_t>(rows.size());
    clusters_.centroids.resize(rows.size() * dim_);
    for (std::size_t c = 0; c < rows.size(); ++c) {
      std::copy_n(input.rows + size(rows[c]) * dim_, dim_, centroid(c));
      kernels::normalise_row(centroid(c), input.dim);
    }
    clusters_.nearest.resize(size(input.count));
    products_.resize(size(input.count));
  }

  Clusters run() {
    assign();
    std::vector<std::int32_t> before;
    for (int i = 0; i < kMeansIterations && clusters_.nearest != before; ++i) {
      before = clusters_.nearest;
      move();
      assign();
    }
    renumber();
    return std::move(clusters_);
  }

 private:
  float* centroid(std::size_t cluster) { return clusters_.centroids.data() + cluster * dim_; }

  void assign() {
    kernels::assign_rows({input_.rows, input_.count, clusters_.centroids.data(), clusters_.count, input_.dim,
                          clusters_.nearest.data(), products_.data()},
                         workspace_);
  }

  /// Centroids to the direction of their members' sum. An empty cluster stays where it is.
  void move() {
    std::vector<float> sums(clusters_.centroids.size(), 0.0F);
    std::vector<std::int32_t> members(size(clusters_.count), 0);
    for (std::size_t r = 0; r < clusters_.nearest.size(); ++r) {
      float* sum = sums.data() + size(clusters_.nearest[r]) * dim_;
      const float* row = input_.rows + r * dim_;
      for (std::size_t i = 0; i < dim_; ++i) sum[i] += row[i];
      ++members[size(clusters_.nearest[r])];
    }
    for (std::size_t c = 0; c < members.size(); ++c) {
      if (members[c] == 0) continue;
      std::copy_n(sums.data() + c * dim_, dim_, centroid(c));
      kernels::normalise_row(centroid(c), input_.dim);
    }
  }

  /// Drops empty clusters and numbers the others by their first row.
  void renumber() {
    const std::vector<std::int32_t> number = number_clusters(clusters_.nearest, clusters_.count);
    const auto left = static_cast<std::size_t>(
        std::count_if(number.begin(), number.end(), [](std::int32_t cluster) { return cluster >= 0; }));
    std::vector<float> centroids(left * dim_);
    for (std::size_t c = 0; c < number.size(); ++c) {
      if (number[c] >= 0) std::copy_n(centroid(c), dim_, centroids.data() + size(number[c]) * dim_);
    }
    clusters_.count = static_cast<std::int32_t>(left);
    clusters_.centroids = std::move(centroids);
  }

  KMeansInput input_;
  std::size_t dim_;
  std::vector<std::byte> workspace_;
  std::vector<float> products_;
  Clusters clusters_;
};

}  // namespace

std::vector<std::int32_t> sampled_rows(std::int32_t count, std::int32_t clusters) {
  std::mt19937_64 random(kSeed);
  return sample_rows(sample_size(count, clusters), count, random);
}

std::vector<std::int32_t> number_clusters(std::span<std::int32_t> nearest, std::int32_t clusters) {
  std::vector<std::int32_t> number(size(clusters), -1);
  std::int32_t next = 0;
  for (std::int32_t& cluster : nearest) {
    std::int32_t& mine = number[size(cluster)];
    if (mine < 0) mine = next++;
    cluster = mine;
  }
  return number;
}

Clusters spherical_k_means(const KMeansInput& input) {
  check(input.count > 0 && input.clusters > 0, "k-means needs rows and clusters");
  return KMeans(input).run();
}

}  // namespace glimpse::kv
