// Rows of keys against plain loops, and k-means against what it promises: each row is in the cluster of
// the largest product, centroids are their members' direction, and rows lie as near to them as with the host's k-means.
#include "glimpse/kernels/cuda/k_means.h"

#include <numeric>
#include <set>

#include "device_bed.h"
#include "glimpse/base/dtype.h"
#include "glimpse/base/size.h"
#include "glimpse/kernels/ref/rows.h"
#include "glimpse/kv/index/k_means.h"

namespace glimpse::kernels::cuda::test {
namespace {

class KMeansTest : public CudaTest {};

/// Rows of length 1 around some directions, some of them equal.
std::vector<float> rows_of(std::int32_t count, int dim, int directions, std::mt19937& random, bool repeat = false) {
  std::normal_distribution<float> normal;
  std::vector<float> centers(size(directions) * size(dim));
  for (float& x : centers) x = normal(random);
  std::vector<float> rows(size(count) * size(dim));
  for (std::int32_t r = 0; r < count; ++r) {
    const std::size_t center = random() % size(directions);
    float* const row = rows.data() + size(r) * size(dim);
    double squares = 0;
    for (std::size_t i = 0; i < size(dim); ++i) {
      row[i] = centers[center * size(dim) + i] + (repeat ? 0 : 0.7F * normal(random));
      squares += static_cast<double>(row[i]) * row[i];
    }
    for (std::size_t i = 0; i < size(dim); ++i) row[i] = static_cast<float>(row[i] / std::sqrt(squares));
  }
  return rows;
}

double product(const float* a, const float* b, int dim) {
  double sum = 0;
  for (int i = 0; i < dim; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

/// The memory of a problem on the device.
struct OnDevice {
  OnDevice(Stream& stream, const std::vector<float>& values, const std::vector<float>& drawn_from, std::int32_t count,
           std::int32_t clusters, int dim)
      : rows(stream, values),
        sample(stream, drawn_from),
        centroids(stream, size(clusters) * size(dim)),
        packed(stream, packed_words(clusters, dim)),
        nearest(stream, size(count)),
        distances(stream, size(count)),
        sums(stream, size(count)),
        seeds(stream, size(clusters)),
        notes(stream, kMeansNotes),
        problem{.rows = rows.constant().raw(),
                .sample = sample.constant().raw(),
                .count = count,
                .sample_count = static_cast<std::int32_t>(drawn_from.size()) / dim,
                .clusters = clusters,
                .centroids = centroids.pointer().raw(),
                .packed = packed.pointer().raw(),
                .nearest = nearest.pointer().raw(),
                .distances = distances.pointer().raw(),
                .sums = sums.pointer().raw(),
                .seeds = seeds.pointer().raw(),
                .notes = notes.pointer().raw()} {}

  Array<float> rows, sample, centroids;
  Array<std::uint32_t> packed;
  Array<std::int32_t> nearest;
  Array<float> distances;
  Array<double> sums;
  Array<std::int32_t> seeds, notes;
  KMeansProblem problem;
};

struct Wanted {
  std::int32_t count, clusters;
  int directions;
  bool repeat = false;
  bool sampled = false;  ///< rows of any length, of which some are drawn from
};

TEST_F(KMeansTest, RowsAreInTheNearestClusterAndNearIt) {
  for (const int dim : {64, 96, 128, 256}) {
    std::mt19937 random(7);
    const std::vector<Wanted> wanted{{1, 1, 1},
                                     {5, 2, 3},
                                     {64, 9, 4},
                                     {700, 350, 60},
                                     {2000, 16, 40},
                                     {1999, 999, 90},
                                     {300, 299, 50, true},
                                     {257, 64, 7, true},
                                     {1500, 750, 400},
                                     {1100, 20, 30, false, true}};
    std::vector<std::vector<float>> rows;
    std::vector<std::unique_ptr<OnDevice>> device;
    std::vector<KMeansProblem> problems;
    std::int32_t most_rows = 0, most_clusters = 0;
    for (const Wanted& of : wanted) {
      rows.push_back(rows_of(of.count, dim, of.directions, random, of.repeat));
      std::vector<float> sample = rows.back();
      if (of.sampled) {
        sample.resize(sample.size() / 2 / size(dim) * size(dim));
        for (std::size_t i = 0; i < rows.back().size(); ++i) {
          rows.back()[i] *= 0.5F + static_cast<float>(i / size(dim) % 17);
        }
      }
      device.push_back(std::make_unique<OnDevice>(*stream_, rows.back(), sample, of.count, of.clusters, dim));
      problems.push_back(device.back()->problem);
      most_rows = std::max(most_rows, of.count);
      most_clusters = std::max(most_clusters, of.clusters);
    }
    const Array<KMeansProblem> on(*stream_, problems);
    const KMeansOp op{on.constant(), static_cast<int>(problems.size()), most_rows, most_rows, most_clusters, dim};
    k_means(*stream_, op);
    const Array<float> means(*stream_, problems.size() * size(most_clusters) * size(dim));
    const Array<float> reach(*stream_, problems.size() * size(most_rows));
    cluster_means(*stream_, {op.problems, op.problem_count, most_clusters, dim, means.pointer()});
    cluster_reach(*stream_, {op.problems, op.problem_count, most_rows, dim, reach.pointer()});
    const std::vector<float> all_means = means.values(), all_reach = reach.values();
    std::vector<std::vector<std::int32_t>> first;
    std::vector<double> ratios;
    for (std::size_t p = 0; p < wanted.size(); ++p) {
      SCOPED_TRACE(testing::Message() << "dim " << dim << ", " << wanted[p].count << " rows");
      const std::vector<float> centroids = device[p]->centroids.values();
      const std::vector<std::int32_t> nearest = device[p]->nearest.values();
      const std::int32_t clusters = device[p]->notes.values()[0];
      ASSERT_GE(clusters, 1);
      ASSERT_LE(clusters, wanted[p].clusters);
      if (!wanted[p].repeat) {
        EXPECT_GE(clusters, wanted[p].clusters - wanted[p].clusters / 50) << "draws of one row are made up for";
      } else {
        const std::set<std::int32_t> used(nearest.begin(), nearest.end());
        EXPECT_LE(static_cast<int>(used.size()), wanted[p].directions) << "equal rows are in one cluster";
      }
      first.push_back(nearest);
      double near = 0;
      std::vector<double> sums(size(clusters) * size(dim), 0);
      std::vector<int> members(size(clusters), 0);
      for (std::int32_t r = 0; r < wanted[p].count; ++r) {
        const float* const row = rows[p].data() + size(r) * size(dim);
        ASSERT_TRUE(nearest[size(r)] >= 0 && nearest[size(r)] < clusters);
        const float* const center = centroids.data() + size(nearest[size(r)]) * size(dim);
        const double own = product(row, center, dim), length = std::sqrt(product(row, row, dim));
        near += own;
        for (std::int32_t c = 0; c < clusters; ++c) {
          ASSERT_LT(product(row, centroids.data() + size(c) * size(dim), dim), own + 2e-6 * length) << "row " << r;
        }
        double squares = 0;
        ++members[size(nearest[size(r)])];
        for (std::size_t i = 0; i < size(dim); ++i) {
          sums[size(nearest[size(r)]) * size(dim) + i] += static_cast<double>(row[i]);
          const double off = static_cast<double>(row[i]) - float_from_f16(f16_from_float(center[i]));
          squares += off * off;
        }
        const auto told = static_cast<double>(all_reach[p * size(most_rows) + size(r)]);
        ASSERT_GE(told, std::sqrt(squares) * (1 - 1e-13));
        ASSERT_LE(told, std::sqrt(squares) * (1 + 2e-7) + 1e-30);
      }
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const double mean = members[i / size(dim)] == 0 ? 0 : sums[i] / members[i / size(dim)];
        ASSERT_NEAR(all_means[p * size(most_clusters) * size(dim) + i], mean, 3e-5);
      }
      for (std::int32_t c = 0; c < clusters; ++c) {
        ASSERT_NEAR(product(centroids.data() + size(c) * size(dim), centroids.data() + size(c) * size(dim), dim), 1,
                    1e-5);
      }
      const kv::Clusters host =
          kv::spherical_k_means({rows[p].data(), wanted[p].count, dim, wanted[p].clusters,
                                 wanted[p].sampled ? kv::Seeding::sampled_plus_plus : kv::Seeding::plus_plus});
      double theirs = 0;
      for (std::int32_t r = 0; r < wanted[p].count; ++r) {
        theirs += product(rows[p].data() + size(r) * size(dim),
                          host.centroids.data() + size(host.nearest[size(r)]) * size(dim), dim);
      }
      if (wanted[p].count < 64) continue;  // which of few first centroids are drawn decides
      ratios.push_back(near / theirs);
      EXPECT_GT(near, 0.95 * theirs);
    }
    EXPECT_GT(std::accumulate(ratios.begin(), ratios.end(), 0.0), 0.99 * static_cast<double>(ratios.size()));
    k_means(*stream_, op);
    for (std::size_t p = 0; p < wanted.size(); ++p) EXPECT_TRUE(device[p]->nearest.values() == first[p]);
  }
}

/// Where nothing changes any more, centroids are the direction of the members' sum.
TEST_F(KMeansTest, CentroidsAreTheirMembersDirection) {
  constexpr int kDim = 128;
  std::mt19937 random(3);
  const std::vector<float> rows = rows_of(600, kDim, 12, random);
  const OnDevice device(*stream_, rows, rows, 600, 8, kDim);
  const Array<KMeansProblem> on(*stream_, std::vector{device.problem});
  k_means(*stream_, {on.constant(), 1, 600, 600, 8, kDim});
  const std::vector<std::int32_t> notes = device.notes.values(), nearest = device.nearest.values();
  ASSERT_EQ(notes[kMeansNotes - 1], 0) << "it came to rest";
  const std::vector<float> centroids = device.centroids.values();
  for (std::int32_t c = 0; c < notes[0]; ++c) {
    std::vector<double> sum(kDim, 0);
    for (std::int32_t r = 0; r < 600; ++r) {
      if (nearest[size(r)] != c) continue;
      for (std::size_t i = 0; i < kDim; ++i) sum[i] += static_cast<double>(rows[size(r) * kDim + i]);
    }
    double squares = 0;
    for (const double x : sum) squares += x * x;
    for (std::size_t i = 0; i < kDim && squares > 0; ++i) {
      ASSERT_NEAR(centroids[size(c) * kDim + i], sum[i] / std::sqrt(squares), 1e-5);
    }
  }
}

TEST_F(KMeansTest, SpansAreTheirKeysMeanOrMost) {
  Stream& stream = *stream_;
  each_case([&](OperationsBed& bed) {
    if (!bed.positions.empty()) return;  // heads that freed tokens have no such index
    const DeviceBed on(stream, bed);
    std::int32_t least = bed.views.front().slots;
    for (const HeadView& view : bed.views) least = std::min(least, view.slots);
    std::vector<std::int32_t> begins, ends;
    for (std::int32_t end = 0; end < least;) {
      begins.push_back(std::min(end + bed.below(3), least - 1));
      ends.push_back(end = std::min(least, begins.back() + 1 + bed.below(16)));
    }
    const Array<std::int32_t> device_begins(stream, begins), device_ends(stream, ends);
    for (const auto& [largest, scaled] : {std::pair(false, true), std::pair(true, true), std::pair(false, false)}) {
      const Array<float> rows(stream, bed.views.size() * ends.size() * bed.dim());
      key_rows(stream, {bed.format, on.cache().views, static_cast<int>(bed.views.size()), device_begins.constant(),
                        device_ends.constant(), static_cast<int>(ends.size()), largest, scaled, rows.pointer()});
      const std::vector<float> got = rows.values();
      for (std::size_t head = 0; head < bed.views.size(); ++head) {
        for (std::size_t span = 0; span < ends.size(); ++span) {
          std::vector<double> want(bed.dim(), largest ? -1e30 : 0);
          for (std::int32_t slot = begins[span]; slot < ends[span]; ++slot) {
            const std::vector<double> key = ref::read_row(bed.format, bed.views[head], bed.views[head].k_plane, slot);
            for (std::size_t i = 0; i < key.size(); ++i)
              want[i] = largest ? std::max(want[i], key[i]) : want[i] + key[i] / (ends[span] - begins[span]);
          }
          double squares = 0;
          for (const double x : want) squares += x * x;
          for (std::size_t i = 0; i < want.size(); ++i) {
            ASSERT_NEAR(got[(head * ends.size() + span) * bed.dim() + i],
                        scaled ? want[i] / std::sqrt(squares) : want[i], 1e-5);
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
