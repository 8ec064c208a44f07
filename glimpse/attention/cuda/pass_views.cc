#include "glimpse/attention/cuda/pass_views.h"

#include <algorithm>

#include "glimpse/base/size.h"

namespace glimpse::attention::cuda {

std::size_t PassViews::number(std::size_t layer, std::size_t sequence, std::size_t head) const {
  return (layer * sequences_ + sequence) * size(cache_.shape().kv_heads) + head;
}

void PassViews::begin(const PassTables& tables, const PageTables& pages, kernels::cuda::Staging& staging) {
  staging_ = &staging;
  const std::size_t layers = size(cache_.shape().layers), heads = size(cache_.shape().kv_heads);
  sequences_ = tables.entries().size();
  fresh_ = tables.sizes().fresh;
  longest_ = tables.sizes().longest;
  cached_ = {cache_.shape().format, staging.add_room<kernels::HeadView>(layers * sequences_ * heads)};
  auto* const to = staging.values<kernels::HeadView>(cached_.place);
  for (std::size_t i = 0; i < sequences_; ++i) {
    const std::span<const kernels::HeadView> views = pages.views(tables.entries()[i].rows);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      std::copy_n(views.begin() + static_cast<std::ptrdiff_t>(layer * heads), heads, to + number(layer, i, 0));
    }
  }
}

void PassViews::add(const PassTables& tables, const MadeRows& made, kernels::cuda::Staging& staging) {
  if (!made.any()) return;
  const std::size_t count = size(cache_.shape().layers) * sequences_ * size(cache_.shape().kv_heads);
  made_ = {cache_.shape().format, staging.add_room<kernels::HeadView>(count)};
  auto* const to = staging.values<kernels::HeadView>(made_.place);
  std::copy_n(staging.values<kernels::HeadView>(cached_.place), count, to);
  for (std::size_t i = 0; i < sequences_; ++i) {
    const PassEntry& entry = tables.entries()[i];
    if (entry.first_made < 0) continue;
    for (int layer = 0; layer < cache_.shape().layers; ++layer) {
      for (int head = 0; head < cache_.shape().kv_heads; ++head) {
        if (makes_rows(entry, layer, head)) to[number(size(layer), i, size(head))] = made.view(entry, head);
      }
    }
  }
}

void PassViews::add(const PassTables& tables, const Widened& widened, kernels::cuda::Staging& staging) {
  if (!widened.any()) return;
  const std::size_t count = size(cache_.shape().layers) * sequences_ * size(cache_.shape().kv_heads);
  widened_ = {widened.format(), staging.add_room<kernels::HeadView>(count)};
  auto* const to = staging.values<kernels::HeadView>(widened_.place);
  const auto* const views = staging.values<kernels::HeadView>(cached_.place);
  std::fill_n(to, count, kernels::HeadView{});
  for (const kernels::PromptRows& prompt : tables.prompts()) {
    for (int layer = 0; layer < cache_.shape().layers; ++layer) {
      for (int head = 0; head < cache_.shape().kv_heads; ++head) {
        const std::size_t at = number(size(layer), size(prompt.sequence), size(head));
        to[at] = widened.view(views[at], head);
      }
    }
  }
}

kernels::KvTable<kernels::Place::device> PassViews::at(const Table& table, int layer) const {
  const kernels::HeadView* views = staging_->at<kernels::HeadView>(table.place).raw();
  // What is put together, or widened, is the work of a launch before.
  const int fresh = &table == &cached_ ? fresh_ : -1;
  return {.format = table.format,
          .views = views + number(size(layer), 0, 0),
          .sequences = static_cast<int>(sequences_),
          .kv_heads = cache_.shape().kv_heads,
          .fresh = fresh,
          .longest = longest_};
}

}  // namespace glimpse::attention::cuda
