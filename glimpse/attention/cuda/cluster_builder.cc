#include "glimpse/attention/cuda/cluster_builder.h"

#include <algorithm>
#include <chrono>

namespace glimpse::attention::cuda {
double ClusterBuilder::build(const SequenceRows& rows, std::span<IndexItem> items, std::int64_t prompt,
                             std::int64_t tokens) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<IndexItem*> left;
  for (IndexItem& item : items) {
    if (item.index->covered() == 0) left.push_back(&item);
  }
  while (!left.empty()) {
    // Those of one selector cluster the same tokens.
    const plan::Selector& selector = selector_of(rows, left.front()->layer, left.front()->head);
    const auto others = std::stable_partition(left.begin(), left.end(), [&](const IndexItem* item) {
      return &selector_of(rows, item->layer, item->head) == &selector;
    });
    const std::vector<IndexItem*> alike(left.begin(), others);
    left.erase(left.begin(), others);
    if (dynamic_cast<const kv::ChunkTree*>(alike.front()->index) != nullptr) {
      build_trees(rows, alike, prompt, tokens);
    } else {
      build_lists(rows, alike, prompt, tokens);
    }
  }
  memory_ = {};
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void ClusterBuilder::in_groups(Items items, std::size_t of_item, std::size_t most,
                               const std::function<void(Items)>& work) {
  // Half of what is free is others'.
  const std::size_t room = kernels::cuda::free_memory(stream_.device().number) / 2 + memory_.size();
  const std::size_t at_once = std::min(std::max<std::size_t>(1, most), room / of_item);
  for (std::size_t first = 0; at_once > 0 && first < items.size(); first += at_once) {
    work(items.subspan(first, std::min(at_once, items.size() - first)));
  }
}

void ClusterBuilder::make_room(std::size_t bytes) {
  if (bytes <= memory_.size()) return;
  memory_ = {};
  memory_ = kernels::cuda::Memory(stream_, bytes);
}

void ClusterBuilder::read_keys(const SequenceRows& rows, Items items, const Spans& spans, float* to) {
  std::vector<plan::SlotId> at;
  for (const IndexItem* item : items) at.push_back({item->layer, item->head});
  const DeviceHeads heads(cache_, stream_, rows.sequence, at, *std::max_element(spans.ends.begin(), spans.ends.end()));
  const kernels::cuda::Array<std::int32_t> begins(stream_, spans.begins), ends(stream_, spans.ends);
  kernels::cuda::key_rows(stream_, {.format = cache_.shape().format,
                                    .heads = heads.views(),
                                    .head_count = heads.count(),
                                    .begins = begins.constant(),
                                    .ends = ends.constant(),
                                    .spans = static_cast<int>(spans.size()),
                                    .largest = spans.largest,
                                    .scaled = spans.scaled,
                                    .rows = to});
  stream_.synchronize();  // the arrays end here
}

const std::byte* ClusterBuilder::comes_back(std::size_t from, std::size_t to) {
  if (to - from > host_.size()) {
    host_ = {};
    host_ = kernels::cuda::Pinned(stream_, to - from + (to - from) / 8);
  }
  memory_.copy_out_later(from, host_, to - from);
  stream_.synchronize();
  return host_.raw();
}

}  // namespace glimpse::attention::cuda
