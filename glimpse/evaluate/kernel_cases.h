// Timing of attention kernels: a cache of random rows laid out as the engine's, cases that run a kernel over it, and
// the loop that times cases beside the memory's read bandwidth. Each case is checked against the reference kernels
// before anything is timed. A cache is const once made, and cases share it. One caller; the loop owns its threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "glimpse/base/buffer.h"
#include "glimpse/kernels/attention.h"

namespace glimpse::evaluate {

/// Entries of each list, unless something else is asked for.
inline constexpr int kGatheredRows = 2048;

struct KernelShape {
  kernels::KvFormat format;
  int heads = 3;  ///< KV heads
  int group = 3;  ///< query heads of each
};

/// As many layers as fill kBytes, which is several times the last-level cache. In each plane lies a run of 16 pages of
/// head 0, one of head 1, and so on, then the next runs.
class KernelCache {
 public:
  static constexpr std::size_t kBytes = std::size_t{192} << 20;

  /// `chosen`: entries of each list, at most `length`.
  KernelCache(const KernelShape& cache_shape, int length, int chosen);

  float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape.format.dim)); }
  const float* query_of(std::size_t head) const {
    return query.data() + head * static_cast<std::size_t>(shape.group * shape.format.dim);
  }

  KernelShape shape;
  int tokens;
  int layers = 0;
  std::vector<kernels::HeadView> views;          ///< [layer, head]
  std::vector<float> query;                      ///< [layer, head, g, d]
  std::vector<std::vector<std::int32_t>> lists;  ///< [layer, head] random tokens, ascending

 private:
  void fill(std::size_t pages);

  HostBuffer k_, v_;
  std::vector<std::vector<kernels::PageId>> tables_;
};

using SharedCache = std::shared_ptr<KernelCache>;

/// One thing to measure: `items` independent calls that together are `layers` layers.
struct KernelCase {
  std::string name;
  int layers = 1;
  int items = 0;
  double bytes = 0;  ///< that one layer needs: rows of K and V once, indices, scores
  double flops = 0;  ///< of one layer
  std::function<void(int)> run;
  std::function<double()> check;  ///< the largest difference from the reference; throws where it is too large
};

/// Work items of all layers in storage order (by range, then by head), an even share of each layer's for each thread.
/// Each item names the next one, whose keys its kernel fetches ahead.
template <class Item>
struct LayerItems {
  int per_layer = 0;
  int threads = 1;
  std::vector<Item> items;
  std::vector<float> results;  ///< what they write

  void link() {
    for (std::size_t i = 0; i + 1 < items.size(); ++i) items[i].next = &items[i + 1];
  }
  /// Calls `work` with each item of share number `share`, of [layer, thread].
  template <class Work>
  void run(int share, const Work& work) const {
    const int first = share / threads * per_layer;
    const int thread = share % threads;
    for (int i = first + thread * per_layer / threads; i < first + (thread + 1) * per_layer / threads; ++i) {
      work(items[static_cast<std::size_t>(i)]);
    }
  }
};

/// Items of a layer that reads `entries` rows of each head.
inline int items_of_layer(const KernelShape& shape, int entries) {
  return (entries + kernels::kSplitTokens - 1) / kernels::kSplitTokens * shape.heads;
}

/// Item `i` of all layers': a range of what a head reads, `entries` rows.
template <class Item>
Item range_of_head(const KernelCache& cache, int entries, int i) {
  const int heads = cache.shape.heads;
  const int per_layer = items_of_layer(cache.shape, entries);
  const int range = i % per_layer / heads;
  const auto head = static_cast<std::size_t>(i / per_layer * heads + i % heads);
  Item item;
  item.head = &cache.views[head];
  item.query = cache.query_of(head);
  item.group = cache.shape.group;
  item.scale = cache.scale();
  item.begin = range * kernels::kSplitTokens;
  item.end = std::min(entries, (range + 1) * kernels::kSplitTokens);
  return item;
}

/// A decode step's attention over all tokens, or, `gathered`, over the cache's lists.
KernelCase attend_case(const SharedCache& cache, bool gathered, int threads);

/// "dense bf16 h3 g3 d64".
std::string kernel_label(const std::string& what, const KernelShape& shape);

/// The largest difference, as a share of the largest wanted value. Throws InternalError where one exceeds `allowed`.
double expect_near(std::span<const float> got, std::span<const float> want, double allowed, const std::string& name);

struct KernelRow {
  std::string name;
  double median_s = 0, least_s = 0, most_s = 0;  ///< one layer
  double bytes = 0;
  double fraction = 0;  ///< bytes / time over the bandwidth streamed beside it; median
  double gflops = 0;    ///< multiply-adds counted twice; median
  double error = 0;     ///< what `check` gave
};

struct KernelTimes {
  double read_bandwidth = 0;  ///< bytes per second, all threads streaming; median
  double stream_least_s = 0, stream_median_s = 0, stream_most_s = 0;
  std::vector<KernelRow> rows;  ///< one for each case; empty where `on_round` ended the run
};

/// Checks all cases, then times them in turns, each beside a streaming read of the same threads, so that both see the
/// same neighbours. `on_round` is called before each repetition; false ends the run.
KernelTimes measure_cases(const std::vector<KernelCase>& cases, int threads, int repetitions,
                          const std::function<bool()>& on_round = {});

}  // namespace glimpse::evaluate
