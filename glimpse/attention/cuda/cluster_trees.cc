// LycheeCluster's trees: clusters over representatives of chunks, and branches over those clusters.
#include <algorithm>
#include <utility>

#include "glimpse/attention/cuda/cluster_builder.h"
#include "glimpse/attention/cuda/cluster_layout.h"
#include "glimpse/base/size.h"
#include "glimpse/kernels/cuda/layers.h"

namespace glimpse::attention::cuda {
namespace {

using kernels::cuda::KMeansProblem;

/// Representatives in hand at a time: enough heads to fill a device, few enough to leave its memory to others.
constexpr std::size_t kRowBytes = std::size_t{96} << 20;

kv::ChunkTree& tree_of(const IndexItem* item) {
  return *dynamic_cast<kv::ChunkTree*>(item->index);
}

std::int32_t count_kept(std::span<const std::int32_t> number) {
  return static_cast<std::int32_t>(
      std::count_if(number.begin(), number.end(), [](std::int32_t cluster) { return cluster >= 0; }));
}

}  // namespace

/// What some heads' trees take on the device.
struct ClusterBuilder::TreeGroup {
  Layout layout;
  std::size_t rows;
  MeansLayout fine;
  std::size_t taken, reach;  ///< centroids of clusters that are not empty, one tree's behind the other's; distances
  MeansLayout coarse;

  TreeGroup(std::size_t trees, std::int32_t chunks, std::int32_t clusters, int dim)
      : rows(layout.add(trees * size(chunks) * size(dim) * sizeof(float))),
        fine(layout, trees, size(chunks), size(chunks), size(clusters), dim),
        taken(layout.add(trees * size(clusters) * size(dim) * sizeof(float))),
        reach(layout.add(trees * size(chunks) * sizeof(float))),
        coarse(layout, trees, size(clusters), size(clusters), size(kv::ChunkTree::branches_wanted(clusters)), dim) {}
};

void ClusterBuilder::build_trees(const SequenceRows& rows, Items items, std::int64_t prompt, std::int64_t tokens) {
  const kv::ChunkTree& tree = tree_of(items.front());
  const auto cut = tree.cut(rows.state->boundaries, prompt, tokens);
  if (!cut || cut->chunks.count() == 0) return;
  const std::int32_t chunks = cut->chunks.count();
  const int dim = cache_.shape().format.dim;
  const TreeGroup of_one(1, chunks, tree.clusters_wanted(chunks), dim);
  in_groups(items, of_one.layout.bytes(), kRowBytes / (size(chunks) * size(dim) * sizeof(float)),
            [&](Items some) { build_some_trees(rows, some, *cut); });
}

void ClusterBuilder::build_some_trees(const SequenceRows& rows, Items items, const kv::ChunkTree::Cut& cut) {
  const std::int32_t chunks = cut.chunks.count(), clusters = tree_of(items.front()).clusters_wanted(chunks);
  const int dim = cache_.shape().format.dim, trees = static_cast<int>(items.size());
  const std::size_t wide = size(dim);
  const TreeGroup group(items.size(), chunks, clusters, dim);
  make_room(group.layout.bytes());
  Spans spans;
  for (std::int32_t chunk = 0; chunk < chunks; ++chunk) {
    spans.begins.push_back(static_cast<std::int32_t>(cut.chunks.begin(chunk)));
    spans.ends.push_back(static_cast<std::int32_t>(cut.chunks.end(chunk)));
  }
  spans.largest = selector_of(rows, items.front()->layer, items.front()->head).terms.front().index.max_pooling;
  read_keys(rows, items, spans, floats(group.rows));

  // Clusters, and which of them are empty.
  std::vector<KMeansProblem> problems;
  for (std::size_t i = 0; i < items.size(); ++i) {
    KMeansProblem& problem = problems.emplace_back(group.fine.problem(memory_.raw(), i));
    problem.rows = problem.sample = floats(group.rows) + i * size(chunks) * wide;
    problem.count = problem.sample_count = chunks;
    problem.clusters = clusters;
  }
  const kernels::cuda::Array<KMeansProblem> fine_problems(stream_, problems);
  kernels::cuda::k_means(stream_, {fine_problems.constant(), trees, chunks, chunks, clusters, dim});
  kernels::cuda::cluster_reach(stream_, {fine_problems.constant(), trees, chunks, dim, floats(group.reach)});
  std::vector<kv::Clusters> fine(items.size());
  std::vector<std::vector<std::int32_t>> kept(items.size());  // old numbers by new ones
  const std::byte* back = comes_back(group.fine.nearest, group.fine.centroids);
  const auto at = [&](std::size_t place, std::size_t first) { return back + place - first; };
  builder_.share(items.size(), [&](std::size_t i) {
    const auto* const nearest =
        reinterpret_cast<const std::int32_t*>(at(group.fine.nearest, group.fine.nearest)) + i * size(chunks);
    const auto* const notes = reinterpret_cast<const std::int32_t*>(at(group.fine.notes, group.fine.nearest)) +
                              i * kernels::cuda::kMeansNotes;
    fine[i].nearest.assign(nearest, nearest + chunks);
    const std::vector<std::int32_t> number = kv::number_clusters(fine[i].nearest, notes[0]);
    fine[i].count = count_kept(number);
    kept[i].resize(size(fine[i].count));
    for (std::size_t c = 0; c < number.size(); ++c) {
      if (number[c] >= 0) kept[i][size(number[c])] = static_cast<std::int32_t>(c);
    }
  });

  // Branches over the others.
  std::vector<std::int32_t> which;
  std::vector<std::size_t> begins;
  problems.clear();
  for (std::size_t i = 0; i < items.size(); ++i) {
    begins.push_back(which.size());
    for (const std::int32_t cluster : kept[i]) which.push_back(static_cast<std::int32_t>(i) * clusters + cluster);
    KMeansProblem& problem = problems.emplace_back(group.coarse.problem(memory_.raw(), i));
    problem.rows = problem.sample = floats(group.taken) + begins.back() * wide;
    problem.count = problem.sample_count = fine[i].count;
    problem.clusters = kv::ChunkTree::branches_wanted(fine[i].count);
  }
  const kernels::cuda::Array<std::int32_t> taken(stream_, which);
  kernels::cuda::take_rows(stream_, {floats(group.fine.centroids), taken.constant(), floats(group.taken),
                                     static_cast<int>(which.size()), dim});
  const kernels::cuda::Array<KMeansProblem> coarse_problems(stream_, problems);
  kernels::cuda::k_means(
      stream_, {coarse_problems.constant(), trees, clusters, clusters, kv::ChunkTree::branches_wanted(clusters), dim});

  back = comes_back(group.taken, group.coarse.results);
  builder_.share(items.size(), [&](std::size_t i) {
    const auto* const centroids = reinterpret_cast<const float*>(at(group.taken, group.taken)) + begins[i] * wide;
    fine[i].centroids.assign(centroids, centroids + size(fine[i].count) * wide);
    kv::Clusters branches;
    const auto* const nearest =
        reinterpret_cast<const std::int32_t*>(at(group.coarse.nearest, group.taken)) + i * group.coarse.rows;
    const auto* const notes =
        reinterpret_cast<const std::int32_t*>(at(group.coarse.notes, group.taken)) + i * kernels::cuda::kMeansNotes;
    const auto* const of_branches =
        reinterpret_cast<const float*>(at(group.coarse.centroids, group.taken)) + i * group.coarse.clusters * wide;
    branches.nearest.assign(nearest, nearest + fine[i].count);
    const std::vector<std::int32_t> number = kv::number_clusters(branches.nearest, notes[0]);
    branches.count = count_kept(number);
    branches.centroids.resize(size(branches.count) * wide);
    for (std::size_t c = 0; c < number.size(); ++c) {
      if (number[c] >= 0) std::copy_n(of_branches + c * wide, wide, branches.centroids.data() + size(number[c]) * wide);
    }
    const auto* const reach = reinterpret_cast<const float*>(at(group.reach, group.taken)) + i * size(chunks);
    tree_of(items[i]).adopt(cut, {std::move(fine[i]), std::move(branches), {reach, size(chunks)}});
  });
}

}  // namespace glimpse::attention::cuda
