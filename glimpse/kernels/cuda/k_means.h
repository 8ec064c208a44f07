// Clusters of keys by inner product, for indices that are built when a prompt has ended (LycheeCluster, section 3.2;
// ClusterKV, section 3.2): rows from the cache, and spherical k-means of many heads at once, as kv/index/k_means.h does
// it but for the draw of the first centroids: up to kSeedsAtOnce of them go by the same distances.
//
// All memory is the device's, owned by the caller until the stream has passed the call. One thread at a time. The same
// rows give the same bits. Errors: as kernels/cuda/operations.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::kernels::cuda {

/// Mean (or largest value) of the keys of each span of a head.
struct KeyRowsOp {
  KvFormat format;
  Pointer<const HeadView, Place::device> heads;  ///< [head_count] whose slots are their positions
  int head_count = 0;
  Pointer<const std::int32_t, Place::device> begins, ends;  ///< [spans]
  int spans = 0;
  bool largest = false;
  bool scaled = true;                  ///< to length 1
  Pointer<float, Place::device> rows;  ///< [head_count, spans, d]
};
void key_rows(Stream& stream, const KeyRowsOp& op);

inline constexpr int kSeedsAtOnce = 8;
inline constexpr int kSeedTile = 64;  ///< rows whose distances are summed at a time
inline constexpr int kMeansIterations = 10;

/// One problem. Words of `notes`: the clusters that there are, then what the kernels tell each other.
struct KMeansProblem {
  const float* rows = nullptr;    ///< [count, d]
  const float* sample = nullptr;  ///< [sample_count, d] of length 1: first centroids are some of them; often `rows`
  std::int32_t count = 0, sample_count = 0;
  std::int32_t clusters = 0;        ///< wanted, at least 1; fewer are there where rows are equal
  float* centroids = nullptr;       ///< [clusters, d]
  std::uint32_t* packed = nullptr;  ///< packed_words(clusters, d), aligned to 16 bytes
  std::int32_t* nearest = nullptr;  ///< [count] the cluster of each row
  float* distances = nullptr;       ///< [sample_count]
  double* sums = nullptr;           ///< [ceil(sample_count / kSeedTile)]
  std::int32_t* seeds = nullptr;    ///< [clusters]
  std::int32_t* notes = nullptr;    ///< [kMeansNotes]
};
inline constexpr int kMeansNotes = 4 + kMeansIterations;
/// Clusters in whole tiles of eight.
constexpr std::int32_t whole_tiles(std::int32_t clusters) {
  return (clusters + 7) / 8 * 8;
}
/// Centroids as tensor cores take them, in whole tiles: 16 bits of each value and 16 of what is left.
constexpr std::size_t packed_words(std::int32_t clusters, int dim) {
  return static_cast<std::size_t>(whole_tiles(clusters)) * static_cast<std::size_t>(dim);
}

struct KMeansOp {
  Pointer<const KMeansProblem, Place::device> problems;  ///< [problem_count]
  int problem_count = 0;
  std::int32_t most_rows = 0, most_sampled = 0, most_clusters = 0;  ///< of a problem
  int dim = 0;                                                      ///< 64, 96, 128 or 256
};
/// Some clusters may be empty.
void k_means(Stream& stream, const KMeansOp& op);

/// The mean of each cluster's rows; of an empty one 0.
struct ClusterMeansOp {
  Pointer<const KMeansProblem, Place::device> problems;  ///< [problem_count] that k_means went through
  int problem_count = 0;
  std::int32_t most_clusters = 0;
  int dim = 0;
  Pointer<float, Place::device> means;  ///< [problem_count, most_clusters, d]
};
void cluster_means(Stream& stream, const ClusterMeansOp& op);

/// What a tree keeps of clusters: each row's distance to its centroid as f16, rounded up.
struct ClusterReachOp {
  Pointer<const KMeansProblem, Place::device> problems;  ///< [problem_count] that k_means went through
  int problem_count = 0;
  std::int32_t most_rows = 0;
  int dim = 0;
  Pointer<float, Place::device> distances;  ///< [problem_count, most_rows]
};
void cluster_reach(Stream& stream, const ClusterReachOp& op);

}  // namespace glimpse::kernels::cuda
