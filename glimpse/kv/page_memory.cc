#include "glimpse/kv/page_memory.h"

#include <array>
#include <cstring>

#include "glimpse/base/buffer.h"
#include "glimpse/kv/page_file.h"

namespace glimpse::kv {
namespace {

class HostPageMemory final : public PageMemory {
 public:
  explicit HostPageMemory(std::size_t plane_bytes) : k_(plane_bytes), v_(plane_bytes), planes_{k_.data(), v_.data()} {}

  kernels::Place place() const override { return kernels::Place::host; }
  std::byte* plane(Plane which) const override { return planes_[which == Plane::k ? 0 : 1]; }
  void copy(Plane which, std::size_t from, std::size_t to, std::size_t bytes) override {
    std::memcpy(plane(which) + to, plane(which) + from, bytes);
  }
  void read(Plane which, std::size_t from, std::span<std::byte> to) const override {
    std::memcpy(to.data(), plane(which) + from, to.size());
  }
  void write(Plane which, std::size_t to, std::span<const std::byte> from) override {
    std::memcpy(plane(which) + to, from.data(), from.size());
  }

 private:
  HostBuffer k_, v_;
  std::array<std::byte*, 2> planes_;
};

}  // namespace

void PageMemory::move(Plane which, std::span<const kernels::RowMove> rows, std::size_t bytes) {
  for (const kernels::RowMove& row : rows) copy(which, row.from, row.to, bytes);
}

std::unique_ptr<WaitingMemory> PageMemory::make_waiting(const std::filesystem::path& folder) {
  return std::make_unique<PageFile>(folder);
}

void PageMemory::save(std::span<const kernels::PageCopy> pages, std::size_t bytes) const {
  for (const kernels::PageCopy& page : pages) {
    read(Plane::k, page.at, {page.copy, bytes});
    read(Plane::v, page.at, {page.copy + bytes, bytes});
  }
}

void PageMemory::load(std::span<const kernels::PageCopy> pages, std::size_t bytes) {
  for (const kernels::PageCopy& page : pages) {
    write(Plane::k, page.at, {page.copy, bytes});
    write(Plane::v, page.at, {page.copy + bytes, bytes});
  }
}

std::unique_ptr<PageMemory> make_host_page_memory(std::size_t plane_bytes) {
  return std::make_unique<HostPageMemory>(plane_bytes);
}

}  // namespace glimpse::kv
