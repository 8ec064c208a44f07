// Where the arrays of k-means lie in one piece of a device's memory. Inside attention/cuda only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "glimpse/kernels/cuda/k_means.h"

namespace glimpse::attention::cuda {

/// Arrays one behind the other.
class Layout {
 public:
  std::size_t add(std::size_t bytes) {
    constexpr std::size_t kAlignment = 256;
    const std::size_t at = bytes_;
    bytes_ = (bytes_ + bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

/// Of problems of up to so many rows, rows that first centroids are drawn from, and clusters. What comes back to the
/// host lies first: nearest, notes, centroids, up to `results`.
struct MeansLayout {
  std::size_t rows = 0, sampled = 0, clusters = 0;
  int dim = 0;
  std::size_t nearest = 0, notes = 0, centroids = 0, results = 0;
  std::size_t packed = 0, distances = 0, sums = 0, seeds = 0;

  MeansLayout(Layout& layout, std::size_t problems, std::size_t most_rows, std::size_t most_sampled,
              std::size_t most_clusters, int width)
      : rows(most_rows), sampled(most_sampled), clusters(most_clusters), dim(width) {
    const auto wide = static_cast<std::size_t>(dim);
    nearest = layout.add(problems * rows * sizeof(std::int32_t));
    notes = layout.add(problems * kernels::cuda::kMeansNotes * sizeof(std::int32_t));
    centroids = layout.add(problems * clusters * wide * sizeof(float));
    results = layout.bytes();
    packed = layout.add(problems * packed_words() * sizeof(std::uint32_t));
    distances = layout.add(problems * sampled * sizeof(float));
    sums = layout.add(problems * tiles() * sizeof(double));
    seeds = layout.add(problems * clusters * sizeof(std::int32_t));
  }

  std::size_t tiles() const { return (sampled + kernels::cuda::kSeedTile - 1) / kernels::cuda::kSeedTile; }
  std::size_t packed_words() const { return kernels::cuda::packed_words(static_cast<std::int32_t>(clusters), dim); }

  /// A problem's arrays; what it is about, the caller says.
  kernels::cuda::KMeansProblem problem(std::byte* memory, std::size_t number) const {
    const auto numbers = [&](std::size_t at, std::size_t each) {
      return reinterpret_cast<std::int32_t*>(memory + at) + number * each;
    };
    kernels::cuda::KMeansProblem problem;
    problem.nearest = numbers(nearest, rows);
    problem.notes = numbers(notes, kernels::cuda::kMeansNotes);
    problem.centroids =
        reinterpret_cast<float*>(memory + centroids) + number * clusters * static_cast<std::size_t>(dim);
    problem.packed = reinterpret_cast<std::uint32_t*>(memory + packed) + number * packed_words();
    problem.distances = reinterpret_cast<float*>(memory + distances) + number * sampled;
    problem.sums = reinterpret_cast<double*>(memory + sums) + number * tiles();
    problem.seeds = numbers(seeds, clusters);
    return problem;
  }
};

}  // namespace glimpse::attention::cuda
