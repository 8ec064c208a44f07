// The table of one (sequence, layer, KV head): its pages, and which of its tokens are still there. Owns its vectors;
// the pages are the pool's, one reference each. One thread at a time.
//
// A slot and the logical position in it are always equal modulo kPageTokens: tokens are appended in order and only
// whole pages are dropped. So a page holds one aligned range of positions, and finding a position is a search by page.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/kv/page_pool.h"

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
  /// Appends tokens at logical positions from `position` on, after copying the page they share. The pages are there.
  void append(PagePool& pool, std::int32_t tokens, std::int64_t position);

  /// The slot of a live position, or -1.
  std::int32_t find(std::int32_t position) const;
  /// From now on positions are kept slot by slot.
  void track();
  void free_slot(std::int32_t slot);
  void unfree_slot(std::int32_t slot);
  /// Gives back the full pages whose tokens are all freed; the slots after them move up.
  void drop_empty_pages(PagePool& pool);

  /// Takes back the newest `tokens`, none of them freed. Of the pages, the first `kept` stay (in reserve, if they are
  /// nobody else's). `length`: logical tokens that remain; without gaps among them, positions are not kept any more.
  void take_back(PagePool& pool, std::int32_t tokens, std::int64_t length);
  void shrink_pages(PagePool& pool, std::int32_t kept);

  /// The same tokens on the same pages, each with one reader more; the reserve stays here. May throw bad_alloc; the
  /// references are only taken by the separate share_pages, which cannot.
  HeadTable copy() const;
  void share_pages(PagePool& pool) const;
  void release_pages(PagePool& pool);

 private:
  struct PageTokens {
    std::int32_t first = 0;  ///< logical position of the page's slot 0
    std::int32_t live = 0;
  };

  std::vector<PageId> pages_;  ///< used_pages() with tokens, then the reserve, which nobody else reads
  std::int32_t slots_ = 0;
  std::int32_t live_ = 0;
  bool tracked_ = false;
  bool has_empty_page_ = false;          ///< maybe: a full page lost its last token
  std::vector<std::int32_t> positions_;  ///< [slot], tracked only: logical position, -1 freed
  std::vector<PageTokens> page_tokens_;  ///< [used page], tracked only
};

}  // namespace glimpse::kv
