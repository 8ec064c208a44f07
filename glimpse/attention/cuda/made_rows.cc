#include "glimpse/attention/cuda/made_rows.h"

#include <numeric>
#include <vector>

namespace glimpse::attention::cuda {
namespace {

std::size_t size(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

}  // namespace

void MadeRows::make_space(const PassTables& tables) {
  any_ = tables.made_rows() > 0;
  if (!any_) return;
  const std::size_t bytes = size(tables.made_rows()) * cache_.shape().format.row_bytes();
  if (bytes <= plane_bytes_) return;
  stream_.synchronize();  // what is queued may use the old ones
  rows_ = {};
  pages_ = {};
  plane_bytes_ = bytes + bytes / 4 / 256 * 256;
  rows_ = kernels::cuda::Memory(stream_, 2 * plane_bytes_);
  rows_.fill(std::byte{0});
  std::vector<kernels::PageId> pages(plane_bytes_ / cache_.shape().format.page_bytes());
  std::iota(pages.begin(), pages.end(), kernels::PageId{0});
  pages_ = kernels::cuda::Array<kernels::PageId>(stream_, pages);
  ++moves_;
}

kernels::HeadView MadeRows::view(const PassEntry& entry, int head) const {
  const std::size_t at = size(entry.first_made_row + head * entry.made_of_head) * cache_.shape().format.row_bytes();
  return {rows_.raw() + at, rows_.raw() + plane_bytes_ + at, pages_.constant().raw(), nullptr,
          static_cast<std::int32_t>(entry.made_of_head)};
}

}  // namespace glimpse::attention::cuda
