#include "glimpse/attention/cuda/pass_views.h"

#include <algorithm>

namespace glimpse::attention::cuda {
namespace {

std::size_t size(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

}  // namespace

void PassViews::begin(const PassTables& tables, const PageTables& pages, MadeRows& made,
                      kernels::cuda::Staging& staging) {
  staging_ = &staging;
  const std::size_t layers = size(cache_.shape().layers), heads = size(cache_.shape().kv_heads);
  sequences_ = tables.entries().size();
  views_.resize(layers * sequences_ * heads);
  for (std::size_t i = 0; i < sequences_; ++i) {
    of_sequence_.clear();
    pages.append_views(tables.entries()[i].rows, of_sequence_);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      std::copy_n(of_sequence_.begin() + static_cast<std::ptrdiff_t>(layer * heads), heads,
                  views_.begin() + static_cast<std::ptrdiff_t>((layer * sequences_ + i) * heads));
    }
  }
  cached_place_ = staging.add(views_);
  made.make_space(tables);
  if (!made.any()) return;
  for (std::size_t i = 0; i < sequences_; ++i) {
    const PassEntry& entry = tables.entries()[i];
    if (entry.first_made < 0) continue;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      for (std::size_t head = 0; head < heads; ++head) {
        if (!PassTables::makes_rows(entry, static_cast<int>(layer), static_cast<int>(head))) continue;
        views_[(layer * sequences_ + i) * heads + head] = made.view(entry, static_cast<int>(head));
      }
    }
  }
  made_place_ = staging.add(views_);
}

kernels::KvTable<kernels::Place::device> PassViews::at(std::size_t place, int layer) const {
  const int heads = cache_.shape().kv_heads;
  const kernels::HeadView* views = staging_->at<kernels::HeadView>(place).raw();
  return {cache_.shape().format, views + size(layer) * sequences_ * size(heads), static_cast<int>(sequences_), heads};
}

}  // namespace glimpse::attention::cuda
