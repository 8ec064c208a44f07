// Digests of full blocks of tokens, which hang on the page that a block's last token lies on: made once for all
// sequences that read the page, whatever their methods, and gone with it. Who shares a page shares those before it, so
// that of a block of several pages may be the last one's. Digests lie in tiles (kernels::score_digests); a page holds
// where, and an index over keys is a list of runs of them (index/digests.h). Pages that wait in the tier keep theirs by
// the slots of their copies.
//
// Owned by the page pool. One thread tells it between passes what becomes of pages; find and hang are for any thread
// during a pass.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "glimpse/base/buffer.h"
#include "glimpse/kernels/index.h"
#include "glimpse/kernels/views.h"

namespace glimpse::kv {

/// plan::Digest, and the mean alone (landmarks).
enum class DigestKind : std::uint8_t { min_max, sphere, mean_deviation, mean };

/// Digests that lie together, in the tiles of kernels::score_digests. Who made them appends to them until they are
/// sealed; from then on nobody changes them, and any thread may read them.
struct DigestTiles {
  /// Digests at most.
  static constexpr std::int32_t kMost = 8 * kernels::kDigestTile;

  /// What a vector of these holds starts on a cache line: a value of a tile is one, or a few.
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines;      ///< [tile, value, kDigestTile]; of min_max a minimum and a maximum for each dimension
  std::vector<Line> variances;  ///< [tile, d, kDigestTile] floats, mean_deviation
  std::vector<float> radii;     ///< [tile, kDigestTile], sphere
  std::int32_t used = 0;        ///< digests
  std::atomic<bool> sealed = false;

  /// No digest from `at` on hangs on a page. For the one who appends.
  bool is_free_from(std::int32_t at) const;

 private:
  friend class PageDigests;
  std::vector<std::uint32_t> pages_;  ///< [digest] that it hangs on
  std::size_t all_pages_ = 0;
};

/// Digests of consecutive blocks that lie one after the other.
struct DigestRun {
  std::shared_ptr<DigestTiles> tiles;
  std::int32_t first = 0;  ///< in the tiles
  std::int32_t count = 0;
  std::int32_t begin = 0;  ///< block of the first
};

/// Takes a digest into a list of runs, as the block behind theirs.
void add_to_runs(std::vector<DigestRun>& runs, const std::shared_ptr<DigestTiles>& tiles, std::int32_t at);

class PageDigests {
 public:
  using PageId = kernels::PageId;
  using Slot = std::int32_t;

  /// For a pool whose pages have so many readers, [page], each. Takes address space when the first digest hangs.
  explicit PageDigests(std::span<const std::uint32_t> readers) : readers_(readers) {}

  /// The blocks of one head that never freed a token.
  struct Blocks {
    DigestKind kind = DigestKind::min_max;
    int tokens = 0;                 ///< of a block
    const PageId* pages = nullptr;  ///< [pages of the head], those of the blocks that are asked for resident
  };
  /// Adds the sealed digests of blocks from the end of `runs` to `end`, up to the first that has none.
  void find(const Blocks& blocks, std::int32_t end, std::vector<DigestRun>& runs);
  /// The digests of `runs` from block `first` on, of `bytes` each, hang on their pages, where no other does. Tiles of
  /// those that others may want are sealed.
  void hang(const Blocks& blocks, const std::vector<DigestRun>& runs, std::int32_t first, std::size_t bytes);

  /// The page is free.
  void drop(PageId page) { keep(page, 0); }
  /// Rows from `slots` on are written anew.
  void keep(PageId page, int slots);
  /// The second page has the rows of the first.
  void copy(PageId from, PageId to);
  /// Somebody else reads the pages of a head from now on, [page], those that wait by their `slots`: nobody adds to the
  /// tiles of its last digests any more.
  void seal(std::span<const PageId> pages, std::span<const Slot> slots);
  /// The page's copy is in a slot, or came back from it; a slot is free.
  void wait(PageId page, Slot slot);
  void come_back(Slot slot, PageId page);
  void drop_waiting(Slot slot);
  /// Room for so many slots; before there are any.
  void make_slots(std::size_t slots);

  /// Bytes of the digests on a page, or a slot's.
  std::size_t bytes(PageId page);
  std::size_t bytes_waiting(Slot slot);
  /// Digests that hang was given since the pool was made.
  std::int64_t made() const { return made_; }

 private:
  struct Entry {
    DigestTiles* tiles = nullptr;
    std::int32_t at = 0;
    std::int32_t end = 0;  ///< slots of the page up to the end of the block
  };
  /// Where the last token of a block lies: the page, and its slots up to there.
  struct BlockEnd {
    PageId page = 0;
    std::int32_t slots = 0;
  };
  static BlockEnd end_of(const Blocks& blocks, std::int32_t number);
  /// Of one kind and size of blocks.
  struct Table {
    DigestKind kind = DigestKind::min_max;
    int block = 0;
    std::size_t per_page = 1;  ///< blocks that end on a page, at most
    std::size_t bytes = 0;     ///< of a digest
    std::size_t count = 0;     ///< entries that are taken
    HostBuffer pages;          ///< Entry [page, per_page]
    std::vector<Entry> slots;  ///< [slot, per_page]

    std::span<Entry> of_page(PageId page) { return pages.as<Entry>().subspan(page * per_page, per_page); }
    std::span<Entry> of_slot(Slot slot) {
      return std::span(slots).subspan(static_cast<std::size_t>(slot) * per_page, per_page);
    }
    Entry& of_block(const BlockEnd& end) {
      // Ends lie a block apart, so no two of a page fall together.
      return of_page(end.page)[static_cast<std::size_t>((end.slots - 1) / block)];
    }
  };

  Table& table_of(const Blocks& blocks);
  void set(Table& table, Entry& entry, const Entry& value);
  /// Those that are taken.
  void copy(Table& table, std::span<const Entry> from, std::span<Entry> to);
  /// Entries that end behind `slots`.
  void clear(Table& table, std::span<Entry> entries, int slots);
  static bool any_hang(std::span<const Entry> entries);
  /// Tiles that are open, from the last on. False at the first that is not: those before it are sealed, too.
  static bool seal(std::span<const Entry> entries);
  static std::size_t bytes(const Table& table, std::span<const Entry> entries);

  std::span<const std::uint32_t> readers_;
  std::size_t slots_ = 0;
  std::mutex mutex_;
  std::list<Table> tables_;  ///< those with entries
  /// All that hang somewhere.
  std::unordered_map<const DigestTiles*, std::shared_ptr<DigestTiles>> held_;
  std::int64_t made_ = 0;
};

}  // namespace glimpse::kv
