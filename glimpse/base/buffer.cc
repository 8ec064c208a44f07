#include "glimpse/base/buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdint>
#include <utility>

#include "glimpse/base/error.h"

namespace glimpse {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

HostBuffer::HostBuffer(std::size_t bytes) {
  if (bytes == 0) return;
  // Over-reserve by one huge page so that the start can be aligned to one: an unaligned start costs the first
  // and the last part their huge pages.
  const std::size_t size = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* mapped =
      mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    throw UserError(fmt::format("the system refuses {} MiB of memory; use a smaller context (-c)", bytes >> 20));
  }
  const auto start = reinterpret_cast<std::uintptr_t>(mapped);
  const std::uintptr_t aligned = (start + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > start) munmap(mapped, aligned - start);
  const std::uintptr_t end = aligned + size;
  if (start + size + kHugePage > end) munmap(reinterpret_cast<void*>(end), start + size + kHugePage - end);
  data_ = reinterpret_cast<std::byte*>(aligned);
  size_ = size;
  madvise(data_, size_, MADV_HUGEPAGE);  // a wish: without it everything works, only slower
  // A fork copies the page tables of what it shares, and makes each later write of ours a page fault: for a cache of a
  // long context that is seconds.
  madvise(data_, size_, MADV_DONTFORK);
}

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) munmap(data_, size_);
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace glimpse
