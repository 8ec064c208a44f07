// Pages of the KV cache: two planes (K, V) of equal pages, reference counts, and free lists by runs of kRunPages.
// Owns the memory of both planes, which may be a device's (page_memory.h), and what hangs on pages. Deterministic: the
// lowest free run or page comes first. One thread at a time, except for the bytes of distinct pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "glimpse/base/buffer.h"
#include "glimpse/kernels/views.h"
#include "glimpse/kv/cache.h"
#include "glimpse/kv/page_digests.h"
#include "glimpse/kv/page_memory.h"

namespace glimpse::kv {

using kernels::PageId;

/// In a table: the page's bytes wait in the tier.
inline constexpr PageId kNoPage = ~PageId{0};

/// A set of run numbers whose lowest member is found fast. Allocates at construction only.
class RunSet {
 public:
  RunSet(std::size_t runs, bool filled);
  void insert(std::size_t run);
  void erase(std::size_t run);
  std::optional<std::size_t> lowest();
  std::size_t size() const { return size_; }

 private:
  std::vector<std::uint64_t> words_;
  std::size_t first_ = 0;  ///< no member lies in a word before this one
  std::size_t size_ = 0;
};

struct RowPlace {
  PageId page = 0;
  std::int32_t slot = 0;  ///< in the page
};

class PagePool {
 public:
  /// Touches none of the planes. Throws what `make` throws.
  PagePool(std::size_t runs, std::size_t page_bytes, const MakePageMemory& make = make_host_page_memory);

  std::byte* k_plane() const { return k_plane_; }
  std::byte* v_plane() const { return v_plane_; }
  /// True where the host reads planes in place.
  bool on_host() const { return memory_->place() == kernels::Place::host; }
  std::size_t pages_total() const { return runs_ * kRunPages; }
  std::size_t pages_free() const { return pages_free_; }
  /// Runs all of whose pages are free.
  std::size_t whole_runs() const { return whole_.size(); }

  /// The first of kRunPages consecutive pages, each with one reader; nothing when no run is whole.
  std::optional<PageId> take_run();
  /// One page with one reader, from a broken run if there is one. The pool must not be empty.
  PageId take_page();

  /// One reader more of each page, but for kNoPage.
  void share(std::span<const PageId> pages);
  /// One reader less; the last one frees the page.
  void release(PageId page);
  std::uint32_t readers(PageId page) { return readers_.as<std::uint32_t>()[page]; }

  /// K and V of a whole page, and its digests.
  void copy(PageId from, PageId to);
  /// Those that hang on the pages.
  PageDigests& digests() { return digests_; }
  /// A page and its copy, K, then V, [2 * page_bytes], in memory of make_waiting.
  struct Copy {
    PageId page = 0;
    std::byte* bytes = nullptr;
  };
  std::unique_ptr<WaitingMemory> make_waiting(const std::filesystem::path& folder) {
    return memory_->make_waiting(folder);
  }
  void save(std::span<const Copy> pages) const;
  void load(std::span<const Copy> pages);
  /// Pages that lie together in one plane, to and from memory that is not the pool's.
  void read(Plane plane, PageId first, std::span<std::byte> to) const;
  void write(Plane plane, std::span<const std::byte> from, PageId first);
  /// K and V of tokens, their scales included, in the order of PageMemory::move.
  struct Step {
    RowPlace from, to;
  };
  void move_rows(const kernels::KvFormat& format, std::span<const Step> rows);
  /// How often that happened: K and V came into pages by a copy, a move, from a file or from where they waited.
  std::uint64_t changes() const { return changes_; }

 private:
  std::vector<kernels::PageCopy> places_of(std::span<const Copy> pages) const;

  std::size_t runs_ = 0;
  std::size_t page_bytes_ = 0;
  std::size_t pages_free_ = 0;
  std::uint64_t changes_ = 0;
  std::unique_ptr<PageMemory> memory_;
  std::byte* k_plane_ = nullptr;
  std::byte* v_plane_ = nullptr;
  HostBuffer readers_;  ///< uint32 [page], 0 a free page; host buffers, so that only what is used gets touched
  HostBuffer taken_;    ///< uint16 [run], one bit a page
  RunSet whole_;        ///< no page taken
  RunSet broken_;       ///< some pages taken, some free
  PageDigests digests_;
};

}  // namespace glimpse::kv
