// Where the bytes of the cache's pages lie: two planes of one size, K and V. A device brings its own; everything above
// speaks of pages and never of where their bytes are. Owns the planes. Threads: as PagePool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "glimpse/kernels/tables.h"
#include "glimpse/kv/waiting_memory.h"

namespace glimpse::kv {

enum class Plane : std::uint8_t { k, v };

class PageMemory {
 public:
  virtual ~PageMemory() = default;
  virtual kernels::Place place() const = 0;
  /// What views lead to: memory of that place.
  virtual std::byte* plane(Plane which) const = 0;
  /// Bytes inside a plane, from one offset to another; they do not overlap.
  virtual void copy(Plane which, std::size_t from, std::size_t to, std::size_t bytes) = 0;
  /// Rows of `bytes` each inside a plane, as if one after the other. A row may move to where one before it in the list
  /// lay, never to where one behind it lies.
  virtual void move(Plane which, std::span<const kernels::RowMove> rows, std::size_t bytes);
  /// To and from the host's memory.
  virtual void read(Plane which, std::size_t from, std::span<std::byte> to) const = 0;
  virtual void write(Plane which, std::size_t to, std::span<const std::byte> from) = 0;

  /// Memory for pages that wait: a host's lies in a file in `folder`, a device's in memory of the host that kernels
  /// read, and no folder is looked at. Throws UserError.
  virtual std::unique_ptr<WaitingMemory> make_waiting(const std::filesystem::path& folder);
  /// Pages of `bytes` in each plane to their copies in that memory, where the host may read them then, and back.
  virtual void save(std::span<const kernels::PageCopy> pages, std::size_t bytes) const;
  virtual void load(std::span<const kernels::PageCopy> pages, std::size_t bytes);
};

/// Makes the memory of a cache, two planes of so many bytes. Throws UserError when there is not enough.
using MakePageMemory = std::function<std::unique_ptr<PageMemory>(std::size_t plane_bytes)>;

/// The host's: reserves address space, touches none of it.
std::unique_ptr<PageMemory> make_host_page_memory(std::size_t plane_bytes);

}  // namespace glimpse::kv
