#include "glimpse/attention/cuda/own_pages.h"

#include <numeric>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/base/size.h"

namespace glimpse::attention::cuda {

std::size_t OwnPages::wanted(std::int64_t rows) const {
  const std::size_t pages = (size(rows) + kernels::kPageTokens - 1) / kernels::kPageTokens;
  return pages <= count_ ? 0 : 2 * (pages + pages / 4) * format_.page_bytes();
}

void OwnPages::reserve(std::int64_t rows) {
  const std::size_t bytes = wanted(rows);
  if (bytes == 0) return;
  stream_.synchronize();  // what is queued may use the old ones
  memory_ = {};
  pages_ = {};
  count_ = bytes / 2 / format_.page_bytes();
  memory_ = kernels::cuda::Memory(stream_, bytes);
  memory_.fill(std::byte{0});
  std::vector<kernels::PageId> pages(count_);
  std::iota(pages.begin(), pages.end(), kernels::PageId{0});
  pages_ = kernels::cuda::Array<kernels::PageId>(stream_, pages);
  ++moves_;
}

kernels::HeadView OwnPages::view(std::int64_t row, std::int32_t slots) const {
  check(row % kernels::kPageTokens == 0, "a head's rows begin with a page");
  const std::size_t page = size(row / kernels::kPageTokens);
  std::byte* const k = memory_.raw() + page * format_.page_bytes();
  return {k, k + count_ * format_.page_bytes(), pages_.constant().raw(), nullptr, slots};
}

}  // namespace glimpse::attention::cuda
