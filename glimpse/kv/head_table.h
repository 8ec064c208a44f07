// The table of one (sequence, layer, KV head): its pages, and which of its tokens are still there. Owns its vectors;
// the pages are the pool's, one reference each. One thread at a time.
//
// Live positions ascend with their slots: tokens are appended in order, whole pages are dropped, and compacting keeps
// the order. So finding a position is a search by page and a look through its slots.
//
// Full pages of a table that never freed a token may wait in PageSlots: their number is kNoPage then. A page that was
// recalled keeps its copy there, so that sending it back costs nothing; what changes pages wants the copies gone. The
// table says which pages are to be copied, and who called it has the pool do so before anything writes to them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/kv/page_pool.h"
#include "glimpse/kv/page_slots.h"

namespace glimpse::kv {

class HeadTable {
 public:
  std::int32_t slots() const { return slots_; }
  std::int32_t live() const { return live_; }
  const std::vector<PageId>& pages() const { return pages_; }
  /// Null while every slot holds the position of its own number.
  const std::int32_t* positions() const { return tracked_ ? positions_.data() : nullptr; }

  std::int32_t used_pages() const { return (slots_ + kernels::kPageTokens - 1) / kernels::kPageTokens; }
  /// The last page is partly filled and somebody else reads it too.
  bool writes_shared(PagePool& pool) const;
  /// Pages that `tokens` more need beyond those that the table has in reserve.
  std::int64_t pages_short(PagePool& pool, std::int64_t tokens) const;

  /// Room for `pages` more pages, so that nothing after it can fail.
  void reserve(std::int64_t pages);
  void add_page(PageId page) { pages_.push_back(page); }
  /// Slots of an empty table, whose pages are added after it; `positions` as in HeadLayout.
  void lay_out(std::int32_t slots, std::span<const std::int32_t> positions);
  /// Appends tokens at logical positions from `position` on, after copying the page they share. The pages are there.
  void append(PagePool& pool, std::int32_t tokens, std::int64_t position);

  /// The same where pages for the tokens are there, nobody else reads the last one, and positions are not kept.
  void take_in(std::int32_t tokens) {
    slots_ += tokens;
    live_ += tokens;
  }

  /// The slot of a live position, or -1.
  std::int32_t find(std::int32_t position) const;
  /// From now on positions are kept slot by slot.
  void track();
  void free_slot(std::int32_t slot);
  void unfree_slot(std::int32_t slot, std::int32_t position);
  /// Gives back the full pages whose tokens are all freed; the slots after them move up.
  void drop_empty_pages(PagePool& pool);
  /// Freed slots are so many that moving the live rows together pays: over an eighth of them and a few pages.
  bool worth_compacting() const;
  /// Moves live rows together over their freed slots and gives back the pages left over. False, and nothing is done,
  /// when a page to write is shared and no page is left to copy it to. No mark may be held.
  bool compact(PagePool& pool, const kernels::KvFormat& format);
  /// Makes the pages of slots [first, slots()) this table's own; needs pages_to_own() free pages in the pool.
  std::int64_t pages_to_own(PagePool& pool, std::int32_t first) const;
  void own_pages(PagePool& pool, std::int32_t first);

  /// Takes back the newest `tokens`, none of them freed. Of the pages, the first `kept` stay (in reserve, if they are
  /// nobody else's). `length`: logical tokens that remain; without gaps among them, positions are not kept any more.
  void take_back(PagePool& pool, std::int32_t tokens, std::int64_t length);
  void shrink_pages(PagePool& pool, std::int32_t kept);

  /// The same tokens on the same pages, each with one reader more; the reserve stays here. May throw bad_alloc; the
  /// references are only taken by the separate share_pages, which cannot.
  HeadTable copy() const;
  void share_pages(PagePool& pool, PageSlots* slots) const;
  void release_pages(PagePool& pool, PageSlots* slots);

  /// Of the digests on its pages.
  std::size_t digest_bytes(PageDigests& digests) const;

  bool resident(std::int32_t page) const { return pages_[static_cast<std::size_t>(page)] != kNoPage; }
  /// Pages that wait.
  std::int32_t waiting() const { return waiting_; }
  /// A bit for each page; what is behind the end does not wait.
  std::span<const std::uint64_t> waiting_bits() const { return waiting_bits_; }
  /// The slot of the page's copy, or -1.
  PageSlots::Slot copy_of(std::int32_t page) const {
    const auto at = static_cast<std::size_t>(page);
    return at < copies_.size() ? copies_[at] : -1;
  }
  /// Room to note copies of the pages there are, so that nothing after it can fail.
  void reserve_copies();
  /// Pages that a change copies; there is room, so that nothing can fail.
  using Copies = std::vector<PagePool::Copy>;
  /// Gives a full page back to the pool; there is a slot for it. `saves` gets it unless there is a copy of it.
  void spill(PagePool& pool, PageSlots& slots, std::int32_t page, Copies& saves);
  /// Brings a page back to one of the pool's, which has one.
  void recall(PagePool& pool, const PageSlots& slots, std::int32_t page, Copies& loads);
  /// All pages are resident.
  void forget_copies(PageSlots& slots);

  /// Slots that put_away takes.
  std::int32_t copies_to_put_away(PagePool& pool, bool shared) const;
  void reserve_away();
  /// Gives pages back to the pool; there are slots for them. Between this and bring_back tokens are neither read nor
  /// changed.
  void put_away(PagePool& pool, PageSlots& slots, bool shared, Copies& saves);
  /// Brings them to pages of the pool's, which has as many. What waited before still waits. Slots that are free now
  /// are still to be loaded from.
  void bring_back(PagePool& pool, PageSlots& slots, Copies& loads);
  std::int32_t away() const { return static_cast<std::int32_t>(away_.size()); }

 private:
  struct PageTokens {
    std::int32_t first = 0;  ///< logical position that the page's slot 0 was given
    std::int32_t live = 0;
  };

  std::vector<PageId> pages_;  ///< used_pages() with tokens, then the reserve, which nobody else reads
  std::int32_t slots_ = 0;
  std::int32_t live_ = 0;
  std::int32_t waiting_ = 0;
  bool tracked_ = false;
  bool has_empty_page_ = false;          ///< maybe: a full page lost its last token
  std::vector<std::int32_t> positions_;  ///< [slot], tracked only: logical position, -1 freed
  std::vector<PageTokens> page_tokens_;  ///< [used page], tracked only
  std::vector<PageSlots::Slot> copies_;  ///< [page, at most the full ones] -1: none
  std::vector<std::uint64_t> waiting_bits_;
  void set_waiting(std::int32_t page, bool waits);
  bool goes_away(PagePool& pool, std::int32_t page, bool shared) const;

  struct AwayPage {
    std::int32_t page = 0;
    bool copied = false;  ///< its copy was made for this
  };
  std::vector<AwayPage> away_;  ///< put away and not brought back
};

}  // namespace glimpse::kv
