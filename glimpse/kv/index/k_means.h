// Spherical k-means: centroids of length 1, members by inner product. Deterministic: the same rows give the same
// clusters. Allocates what it returns and needs; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace glimpse::kv {

/// How the first centroids are found: by k-means++ over all rows, or, where there are many clusters, over a sample of
/// them. A pass over these rows for each cluster.
enum class Seeding : std::uint8_t { plus_plus, sampled_plus_plus };

struct KMeansInput {
  const float* rows = nullptr;  ///< [count, dim]; of any length, of length 1 for Seeding::plus_plus
  std::int32_t count = 0;
  int dim = 0;
  std::int32_t clusters = 1;  ///< at least 1; fewer come out where rows are equal or clusters empty
  Seeding seeding = Seeding::plus_plus;
};

struct Clusters {
  std::vector<float> centroids;       ///< [clusters, dim]
  std::vector<std::int32_t> nearest;  ///< [count] the cluster of each row
  std::int32_t count = 0;
};

inline constexpr int kMeansIterations = 10;

/// Clusters are numbered by their first row. None is empty.
Clusters spherical_k_means(const KMeansInput& input);

/// The rows that Seeding::sampled_plus_plus draws from, of so many.
std::vector<std::int32_t> sampled_rows(std::int32_t count, std::int32_t clusters);

/// What the numbers of clusters become so: [clusters] -1 where one is empty. `nearest` is renumbered.
std::vector<std::int32_t> number_clusters(std::span<std::int32_t> nearest, std::int32_t clusters);

}  // namespace glimpse::kv
