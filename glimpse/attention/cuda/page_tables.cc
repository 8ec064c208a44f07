#include "glimpse/attention/cuda/page_tables.h"

#include <algorithm>

namespace glimpse::attention::cuda {
namespace {

/// More pages than these are sent as a whole table: each write costs what four page numbers do.
constexpr std::size_t kMostWrites = std::size_t{1} << 16;

std::size_t pages_of(std::int64_t slots) {
  return static_cast<std::size_t>((slots + kernels::kPageTokens - 1) / kernels::kPageTokens);
}

}  // namespace

PageTables::PageTables(const kv::Cache& cache, kernels::cuda::Stream& stream) : cache_(cache), stream_(stream) {}

bool PageTables::make_room(Table& table, std::size_t pages) {
  if (pages <= table.pages) return false;
  table.pages = std::max<std::size_t>(64, pages + pages / 2);
  const std::size_t heads =
      static_cast<std::size_t>(cache_.shape().layers) * static_cast<std::size_t>(cache_.shape().kv_heads);
  stream_.synchronize();  // what is queued may read the old one
  table.device = {};      // before the new one, which may need its memory
  table.device = kernels::cuda::Array<kernels::PageId>(stream_, heads * table.pages);
  table.known.assign(heads * table.pages, 0);
  return true;
}

void PageTables::begin() {
  if (!written_) {  // a pass that failed: what is known is not what the device has
    for (auto& [id, table] : tables_) table.serial = 0;
  }
  writes_.clear();
  written_ = false;
}

void PageTables::follow(const SequenceRows& rows) {
  Table& table = tables_[rows.sequence];
  const std::uint64_t serial = cache_.serial(rows.sequence);
  bool whole = make_room(table, pages_of(cache_.length(rows.sequence)));
  whole |= table.serial != serial;
  table.serial = serial;
  // A sequence's rows before those of the pass lie where they lay in the last one.
  const std::size_t from =
      whole || rows.program->forgets() ? 0 : static_cast<std::size_t>(rows.position / kernels::kPageTokens);
  const std::size_t before = writes_.size();
  std::size_t at = 0;
  for (int layer = 0; layer < cache_.shape().layers; ++layer) {
    for (int head = 0; head < cache_.shape().kv_heads; ++head, at += table.pages) {
      const kernels::HeadView view = cache_.view(rows.sequence, layer, head);
      const std::size_t pages = pages_of(view.slots);
      for (std::size_t i = from; i < pages; ++i) {
        kernels::PageId& known = table.known[at + i];
        if (!whole && known == view.pages[i]) continue;
        known = view.pages[i];
        if (writes_.size() - before < kMostWrites) writes_.push_back({table.device.pointer().raw() + at + i, known});
      }
    }
  }
  if (writes_.size() - before < kMostWrites) return;
  writes_.resize(before);
  table.device.set(table.known);
}

void PageTables::append_views(kv::SequenceId sequence, std::vector<kernels::HeadView>& views) const {
  const Table& table = tables_.at(sequence);
  const kernels::PageId* pages = table.device.constant().raw();
  for (int layer = 0; layer < cache_.shape().layers; ++layer) {
    for (int head = 0; head < cache_.shape().kv_heads; ++head, pages += table.pages) {
      kernels::HeadView view = cache_.view(sequence, layer, head);
      view.pages = pages;
      view.positions = nullptr;  // heads of plans that run here free whole pages alone
      views.push_back(view);
    }
  }
}

}  // namespace glimpse::attention::cuda
