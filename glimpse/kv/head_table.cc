#include "glimpse/kv/head_table.h"

#include <algorithm>
#include <numeric>

#include "glimpse/base/error.h"

namespace glimpse::kv {
namespace {

using kernels::kPageShift;
using kernels::kPageTokens;

/// Doubles, as push_back would: exact reservations would copy the vector at each growth.
template <class T>
void make_room(std::vector<T>& values, std::size_t more) {
  const std::size_t wanted = values.size() + more;
  if (wanted > values.capacity()) values.reserve(std::max(wanted, values.capacity() * 2));
}

}  // namespace

bool HeadTable::writes_shared(PagePool& pool) const {
  return slots_ % kPageTokens != 0 && pool.readers(pages_[static_cast<std::size_t>(used_pages() - 1)]) > 1;
}

std::int64_t HeadTable::pages_short(PagePool& pool, std::int64_t tokens) const {
  const std::int64_t wanted = (slots_ + tokens + kPageTokens - 1) / kPageTokens;
  if (wanted < static_cast<std::int64_t>(pages_.size())) return 0;  // and for a copy
  // The reserve is there for copies too: the page copied to leaves it.
  const std::int64_t copied = tokens > 0 && writes_shared(pool) ? 1 : 0;
  return std::max<std::int64_t>(0, wanted + copied - static_cast<std::int64_t>(pages_.size()));
}

void HeadTable::reserve(std::int64_t pages) {
  make_room(pages_, static_cast<std::size_t>(pages));
  if (!tracked_) return;
  const std::size_t all_pages = pages_.size() + static_cast<std::size_t>(pages);
  if (all_pages > page_tokens_.size()) make_room(page_tokens_, all_pages - page_tokens_.size());
  if (all_pages * kPageTokens > positions_.size()) make_room(positions_, all_pages * kPageTokens - positions_.size());
}

void HeadTable::lay_out(std::int32_t slots, std::span<const std::int32_t> positions) {
  check(slots_ == 0 && (positions.empty() || static_cast<std::int32_t>(positions.size()) == slots),
        "an empty table is laid out, with a position for each slot");
  slots_ = slots;
  live_ = slots;
  if (positions.empty()) return;
  tracked_ = true;
  live_ = 0;
  positions_.assign(positions.begin(), positions.end());
  std::int32_t next = 0;  // what a page without tokens is given: find never looks there
  for (std::int32_t slot = 0; slot < slots; ++slot) {
    if (slot % kPageTokens == 0) page_tokens_.push_back({next, 0});
    const std::int32_t position = positions[static_cast<std::size_t>(slot)];
    if (position < 0) continue;
    PageTokens& page = page_tokens_.back();
    if (page.live++ == 0) page.first = position;
    ++live_;
    next = position + 1;
  }
  const auto full = page_tokens_.begin() + slots / kPageTokens;
  has_empty_page_ = std::any_of(page_tokens_.begin(), full, [](const PageTokens& page) { return page.live == 0; });
}

void HeadTable::append(PagePool& pool, std::int32_t tokens, std::int64_t position) {
  if (writes_shared(pool)) {
    const auto last = static_cast<std::size_t>(used_pages() - 1);
    const PageId shared = pages_[last];
    pool.copy(shared, pages_[last + 1]);
    pages_.erase(pages_.begin() + static_cast<std::ptrdiff_t>(last));
    pool.release(shared);
  }
  // Of tokens that were taken back.
  if (const int part = slots_ % kPageTokens; part != 0) {
    pool.digests().keep(pages_[static_cast<std::size_t>(used_pages() - 1)], part);
  }
  if (tracked_) {
    for (std::int32_t i = 0; i < tokens; ++i) {
      const auto logical = static_cast<std::int32_t>(position + i);
      if ((slots_ + i) % kPageTokens == 0) page_tokens_.push_back({logical, 0});
      ++page_tokens_.back().live;
      positions_.push_back(logical);
    }
  }
  slots_ += tokens;
  live_ += tokens;
}

std::int32_t HeadTable::find(std::int32_t position) const {
  if (position < 0) return -1;
  if (!tracked_) return position < slots_ ? position : -1;
  const auto after =
      std::upper_bound(page_tokens_.begin(), page_tokens_.end(), position,
                       [](std::int32_t value, const PageTokens& tokens) { return value < tokens.first; });
  if (after == page_tokens_.begin()) return -1;
  const auto page = static_cast<std::int32_t>(after - page_tokens_.begin()) - 1;
  const std::int32_t begin = page * kPageTokens;
  const std::int32_t end = std::min(begin + kPageTokens, slots_);
  const auto found = std::find(positions_.begin() + begin, positions_.begin() + end, position);
  return found == positions_.begin() + end ? -1 : static_cast<std::int32_t>(found - positions_.begin());
}

void HeadTable::track() {
  if (tracked_) return;
  check(copies_.empty(), "a head that frees tokens has no pages in the tier");
  positions_.reserve(pages_.size() * kPageTokens);
  page_tokens_.reserve(pages_.size());
  positions_.resize(static_cast<std::size_t>(slots_));
  std::iota(positions_.begin(), positions_.end(), 0);
  for (std::int32_t first = 0; first < slots_; first += kPageTokens) {
    page_tokens_.push_back({first, std::min(kPageTokens, slots_ - first)});
  }
  tracked_ = true;
}

void HeadTable::free_slot(std::int32_t slot) {
  PageTokens& page = page_tokens_[static_cast<std::size_t>(slot >> kPageShift)];
  positions_[static_cast<std::size_t>(slot)] = -1;
  --live_;
  const bool full = ((slot >> kPageShift) + 1) * kPageTokens <= slots_;
  if (--page.live == 0 && full) has_empty_page_ = true;
}

void HeadTable::unfree_slot(std::int32_t slot, std::int32_t position) {
  PageTokens& page = page_tokens_[static_cast<std::size_t>(slot >> kPageShift)];
  positions_[static_cast<std::size_t>(slot)] = position;
  ++page.live;
  ++live_;
}

void HeadTable::drop_empty_pages(PagePool& pool) {
  if (!has_empty_page_) return;
  has_empty_page_ = false;
  const auto used = static_cast<std::size_t>(used_pages());
  const auto full = static_cast<std::size_t>(slots_ / kPageTokens);
  std::size_t kept = 0;
  for (std::size_t page = 0; page < used; ++page) {
    if (page < full && page_tokens_[page].live == 0) {
      pool.release(pages_[page]);
      continue;
    }
    if (kept != page) {
      pages_[kept] = pages_[page];
      page_tokens_[kept] = page_tokens_[page];
      const auto from = positions_.begin() + static_cast<std::ptrdiff_t>(page * kPageTokens);
      const std::size_t count =
          std::min<std::size_t>(kPageTokens, static_cast<std::size_t>(slots_) - page * kPageTokens);
      std::copy_n(from, count, positions_.begin() + static_cast<std::ptrdiff_t>(kept * kPageTokens));
    }
    ++kept;
  }
  const std::size_t dropped = used - kept;
  slots_ -= static_cast<std::int32_t>(dropped * kPageTokens);
  page_tokens_.resize(kept);
  positions_.resize(static_cast<std::size_t>(slots_));
  pages_.erase(pages_.begin() + static_cast<std::ptrdiff_t>(kept), pages_.begin() + static_cast<std::ptrdiff_t>(used));
}

bool HeadTable::worth_compacting() const {
  const std::int32_t freed = slots_ - live_;
  return freed >= 2 * kPageTokens && freed > live_ / 8;
}

std::int64_t HeadTable::pages_to_own(PagePool& pool, std::int32_t first) const {
  std::int64_t shared = 0;
  for (std::int32_t page = first >> kPageShift; page < used_pages(); ++page) {
    shared += pool.readers(pages_[static_cast<std::size_t>(page)]) > 1;
  }
  return shared;
}

void HeadTable::own_pages(PagePool& pool, std::int32_t first) {
  check(copies_.empty(), "pages that are written have no copies in the tier");
  for (std::int32_t page = first >> kPageShift; page < used_pages(); ++page) {
    PageId& id = pages_[static_cast<std::size_t>(page)];
    if (pool.readers(id) > 1) {
      const PageId own = pool.take_page();
      pool.copy(id, own);
      pool.release(id);
      id = own;
    }
    pool.digests().keep(id, std::max(0, first - page * kPageTokens));
  }
}

bool HeadTable::compact(PagePool& pool, const kernels::KvFormat& format) {
  const auto hole = std::find(positions_.begin(), positions_.end(), -1);
  if (!tracked_ || hole == positions_.end()) return true;
  auto to = static_cast<std::int32_t>(hole - positions_.begin());
  if (pages_to_own(pool, to) > static_cast<std::int64_t>(pool.pages_free())) return false;
  own_pages(pool, to);
  const auto place = [&](std::int32_t slot) {
    return RowPlace{pages_[static_cast<std::size_t>(slot >> kPageShift)], slot % kPageTokens};
  };
  std::vector<PagePool::Step> moves;
  for (std::int32_t from = to; from < slots_; ++from) {
    if (positions_[static_cast<std::size_t>(from)] < 0) continue;
    moves.push_back({place(from), place(to + static_cast<std::int32_t>(moves.size()))});
  }
  pool.move_rows(format, moves);
  for (std::int32_t from = to; from < slots_; ++from) {
    const std::int32_t position = positions_[static_cast<std::size_t>(from)];
    if (position < 0) continue;
    positions_[static_cast<std::size_t>(to)] = position;
    if (to % kPageTokens == 0) page_tokens_[static_cast<std::size_t>(to >> kPageShift)].first = position;
    ++to;
  }
  const auto before = static_cast<std::size_t>(used_pages());
  slots_ = to;
  const auto after = static_cast<std::size_t>(used_pages());
  positions_.resize(static_cast<std::size_t>(slots_));
  page_tokens_.resize(after);
  for (std::size_t page = 0; page < after; ++page) {
    page_tokens_[page].live =
        std::min<std::int32_t>(kPageTokens, slots_ - static_cast<std::int32_t>(page) * kPageTokens);
  }
  for (std::size_t page = after; page < before; ++page) pool.release(pages_[page]);
  pages_.erase(pages_.begin() + static_cast<std::ptrdiff_t>(after),
               pages_.begin() + static_cast<std::ptrdiff_t>(before));
  has_empty_page_ = false;
  return true;
}

void HeadTable::take_back(PagePool& pool, std::int32_t tokens, std::int64_t length) {
  const auto used_before = static_cast<std::size_t>(used_pages());
  slots_ -= tokens;
  live_ -= tokens;
  if (tracked_) {
    positions_.resize(static_cast<std::size_t>(slots_));
    page_tokens_.resize(static_cast<std::size_t>(used_pages()));
    if (const std::int32_t part = slots_ % kPageTokens; part != 0) {
      page_tokens_.back().live =
          static_cast<std::int32_t>(part - std::count(positions_.end() - part, positions_.end(), -1));
    }
    if (live_ == length) {
      tracked_ = false;
      has_empty_page_ = false;
      positions_.clear();
      page_tokens_.clear();
    }
  }
  // A fork made since may read what is reserve now: writing there would change its tokens.
  const std::size_t end = std::min(used_before, pages_.size());
  std::size_t kept = static_cast<std::size_t>(used_pages());
  for (std::size_t page = kept; page < end; ++page) {
    if (pool.readers(pages_[page]) == 1) {
      pool.digests().drop(pages_[page]);
      pages_[kept++] = pages_[page];
    } else {
      pool.release(pages_[page]);
    }
  }
  if (kept >= end) return;
  pages_.erase(pages_.begin() + static_cast<std::ptrdiff_t>(kept), pages_.begin() + static_cast<std::ptrdiff_t>(end));
}

void HeadTable::shrink_pages(PagePool& pool, std::int32_t kept) {
  while (pages_.size() > static_cast<std::size_t>(kept)) {
    pool.release(pages_.back());
    pages_.pop_back();
  }
}

HeadTable HeadTable::copy() const {
  HeadTable other = *this;
  other.pages_.resize(static_cast<std::size_t>(used_pages()));
  return other;
}

void HeadTable::share_pages(PagePool& pool, PageSlots* slots) const {
  pool.share(pages_);
  for (const PageSlots::Slot copy : copies_) {
    if (copy >= 0) slots->share(copy);
  }
  pool.digests().seal(pages_, copies_);
}

void HeadTable::release_pages(PagePool& pool, PageSlots* slots) {
  for (const PageId page : pages_) {
    if (page != kNoPage) pool.release(page);
  }
  pages_.clear();
  waiting_ = 0;
  waiting_bits_.clear();
  away_.clear();
  if (!copies_.empty()) forget_copies(*slots);
}

std::size_t HeadTable::digest_bytes(PageDigests& digests) const {
  std::size_t sum = 0;
  for (std::int32_t page = 0; page < used_pages(); ++page) {
    sum +=
        resident(page) ? digests.bytes(pages_[static_cast<std::size_t>(page)]) : digests.bytes_waiting(copy_of(page));
  }
  return sum;
}

void HeadTable::reserve_copies() {
  copies_.reserve(pages_.size());
  waiting_bits_.reserve(pages_.size() / 64 + 1);
}

void HeadTable::set_waiting(std::int32_t page, bool waits) {
  const auto word = static_cast<std::size_t>(page / 64);
  if (waiting_bits_.size() <= word) waiting_bits_.resize(word + 1, 0);
  const std::uint64_t bit = std::uint64_t{1} << (page % 64);
  waiting_bits_[word] = waits ? waiting_bits_[word] | bit : waiting_bits_[word] & ~bit;
  waiting_ += waits ? 1 : -1;
}

void HeadTable::spill(PagePool& pool, PageSlots& slots, std::int32_t page, Copies& saves) {
  const auto at = static_cast<std::size_t>(page);
  check(!tracked_ && page >= 0 && (page + 1) * kPageTokens <= slots_ && resident(page), "a full page is spilled");
  if (copies_.size() <= at) copies_.resize(at + 1, -1);
  if (copies_[at] < 0) {
    copies_[at] = slots.take();
    saves.push_back({pages_[at], slots.data(copies_[at])});
  }
  pool.digests().wait(pages_[at], copies_[at]);
  pool.release(pages_[at]);
  pages_[at] = kNoPage;
  set_waiting(page, true);
}

void HeadTable::recall(PagePool& pool, const PageSlots& slots, std::int32_t page, Copies& loads) {
  const auto at = static_cast<std::size_t>(page);
  check(at < copies_.size() && !resident(page), "a page that waits is recalled");
  pages_[at] = pool.take_page();
  pool.digests().come_back(copies_[at], pages_[at]);
  loads.push_back({pages_[at], slots.data(copies_[at])});
  set_waiting(page, false);
}

bool HeadTable::goes_away(PagePool& pool, std::int32_t page, bool shared) const {
  return resident(page) && (shared || pool.readers(pages_[static_cast<std::size_t>(page)]) == 1);
}

std::int32_t HeadTable::copies_to_put_away(PagePool& pool, bool shared) const {
  std::int32_t count = 0;
  for (std::int32_t page = 0; page < used_pages(); ++page) count += goes_away(pool, page, shared) && copy_of(page) < 0;
  return count;
}

void HeadTable::reserve_away() {
  reserve_copies();
  away_.reserve(pages_.size());
}

void HeadTable::put_away(PagePool& pool, PageSlots& slots, bool shared, Copies& saves) {
  const std::int32_t used = used_pages();
  shrink_pages(pool, used);
  for (std::int32_t page = 0; page < used; ++page) {
    if (!goes_away(pool, page, shared)) continue;
    const auto at = static_cast<std::size_t>(page);
    if (copies_.size() <= at) copies_.resize(at + 1, -1);
    const bool copied = copies_[at] < 0;
    if (copied) {
      copies_[at] = slots.take();
      saves.push_back({pages_[at], slots.data(copies_[at])});
    }
    pool.digests().wait(pages_[at], copies_[at]);
    pool.release(pages_[at]);
    pages_[at] = kNoPage;
    away_.push_back({page, copied});
    set_waiting(page, true);
  }
}

void HeadTable::bring_back(PagePool& pool, PageSlots& slots, Copies& loads) {
  for (const AwayPage& away : away_) {
    recall(pool, slots, away.page, loads);
    if (!away.copied) continue;  // the copy of a full page, which may stay
    auto& copy = copies_[static_cast<std::size_t>(away.page)];
    slots.release(copy);
    copy = -1;
  }
  away_.clear();
  if (std::all_of(copies_.begin(), copies_.end(), [](PageSlots::Slot copy) { return copy < 0; })) copies_.clear();
}

void HeadTable::forget_copies(PageSlots& slots) {
  check(waiting_ == 0, "nothing waits any more");
  for (const PageSlots::Slot copy : copies_) {
    if (copy >= 0) slots.release(copy);
  }
  copies_.clear();
}

}  // namespace glimpse::kv
