// ClusterKV's lists: clusters over single keys, by direction, and the means of their keys.
#include <algorithm>

#include "glimpse/attention/cuda/cluster_builder.h"
#include "glimpse/attention/cuda/cluster_layout.h"
#include "glimpse/base/size.h"

namespace glimpse::attention::cuda {
namespace {

using kernels::cuda::KMeansProblem;

/// Keys in hand at a time, as floats.
constexpr std::size_t kRowBytes = std::size_t{512} << 20;

kv::TokenClusters& lists_of(const IndexItem* item) {
  return *dynamic_cast<kv::TokenClusters*>(item->index);
}

}  // namespace

/// What some heads' lists take on the device.
struct ClusterBuilder::TokenGroup {
  Layout layout;
  std::size_t rows, sample;
  MeansLayout lists;
  std::size_t means;

  TokenGroup(std::size_t heads, std::size_t tokens, std::size_t sampled, std::size_t clusters, int dim)
      : rows(layout.add(heads * tokens * size(dim) * sizeof(float))),
        sample(layout.add(heads * sampled * size(dim) * sizeof(float))),
        lists(layout, heads, tokens, sampled, clusters, dim),
        means(layout.add(heads * clusters * size(dim) * sizeof(float))) {}
};

void ClusterBuilder::build_lists(const SequenceRows& rows, Items items, std::int64_t prompt, std::int64_t tokens) {
  const kv::TokenClusters::Cut cut = lists_of(items.front()).cut(prompt, tokens);
  if (cut.last <= cut.first) return;
  const int dim = cache_.shape().format.dim;
  const std::size_t count = size(cut.last - cut.first);
  const std::size_t sampled = kv::sampled_rows(static_cast<std::int32_t>(count), cut.wanted).size();
  const TokenGroup of_one(1, count, sampled, size(cut.wanted), dim);
  in_groups(items, of_one.layout.bytes(), kRowBytes / (count * size(dim) * sizeof(float)),
            [&](Items some) { build_some_lists(rows, some, cut); });
}

void ClusterBuilder::build_some_lists(const SequenceRows& rows, Items items, const kv::TokenClusters::Cut& cut) {
  const int dim = cache_.shape().format.dim, heads = static_cast<int>(items.size());
  const auto count = static_cast<std::int32_t>(cut.last - cut.first), first = static_cast<std::int32_t>(cut.first);
  Spans all, some;
  for (std::int32_t token = first; token < first + count; ++token) {
    all.begins.push_back(token);
    all.ends.push_back(token + 1);
  }
  all.scaled = false;
  for (const std::int32_t row : kv::sampled_rows(count, cut.wanted)) {
    some.begins.push_back(first + row);
    some.ends.push_back(first + row + 1);
  }
  const auto sampled = static_cast<std::int32_t>(some.size());
  const TokenGroup group(items.size(), size(count), some.size(), size(cut.wanted), dim);
  make_room(group.layout.bytes());
  read_keys(rows, items, all, floats(group.rows));
  read_keys(rows, items, some, floats(group.sample));
  std::vector<KMeansProblem> problems;
  for (std::size_t i = 0; i < items.size(); ++i) {
    KMeansProblem& problem = problems.emplace_back(group.lists.problem(memory_.raw(), i));
    problem.rows = floats(group.rows) + i * size(count) * size(dim);
    problem.sample = floats(group.sample) + i * some.size() * size(dim);
    problem.count = count;
    problem.sample_count = sampled;
    problem.clusters = cut.wanted;
  }
  const kernels::cuda::Array<KMeansProblem> device_problems(stream_, problems);
  kernels::cuda::k_means(stream_, {device_problems.constant(), heads, count, sampled, cut.wanted, dim});
  kernels::cuda::cluster_means(stream_, {device_problems.constant(), heads, cut.wanted, dim, floats(group.means)});

  std::vector<std::vector<std::int32_t>> nearest(items.size()), number(items.size());
  const std::byte* back = comes_back(group.lists.nearest, group.lists.centroids);
  builder_.share(items.size(), [&](std::size_t i) {
    const auto* const from = reinterpret_cast<const std::int32_t*>(back) + i * size(count);
    const auto* const notes = reinterpret_cast<const std::int32_t*>(back + group.lists.notes - group.lists.nearest) +
                              i * kernels::cuda::kMeansNotes;
    nearest[i].assign(from, from + count);
    number[i] = kv::number_clusters(nearest[i], notes[0]);
  });
  back = comes_back(group.means, group.layout.bytes());
  builder_.share(items.size(), [&](std::size_t i) {
    const auto* const from = reinterpret_cast<const float*>(back) + i * size(cut.wanted) * size(dim);
    const auto kept = std::count_if(number[i].begin(), number[i].end(), [](std::int32_t c) { return c >= 0; });
    std::vector<float> means(size(kept) * size(dim));
    for (std::size_t c = 0; c < number[i].size(); ++c) {
      if (number[i][c] < 0) continue;
      std::copy_n(from + c * size(dim), size(dim), means.data() + size(number[i][c]) * size(dim));
    }
    lists_of(items[i]).adopt(cut, nearest[i], static_cast<std::int32_t>(kept), means);
  });
}

}  // namespace glimpse::attention::cuda
