#include "glimpse/kv/page_pool.h"

#include <algorithm>
#include <bit>

#include "glimpse/base/error.h"

namespace glimpse::kv {
namespace {

constexpr std::uint16_t kAllTaken = 0xffff;
static_assert(kRunPages == 16, "one bit of a uint16 stands for one page of a run");

/// They are the pages of a run, in order.
bool is_run(std::span<const PageId> pages) {
  if (pages.size() != kRunPages || pages[0] % kRunPages != 0) return false;
  bool in_order = true;
  for (std::size_t i = 0; i < kRunPages; ++i) in_order &= pages[i] == pages[0] + i;
  return in_order;
}

}  // namespace

RunSet::RunSet(std::size_t runs, bool filled) : words_((runs + 63) / 64, 0) {
  if (!filled) return;
  std::fill(words_.begin(), words_.end(), ~std::uint64_t{0});
  if (runs % 64 != 0) words_.back() = (std::uint64_t{1} << (runs % 64)) - 1;
  size_ = runs;
}

void RunSet::insert(std::size_t run) {
  words_[run / 64] |= std::uint64_t{1} << (run % 64);
  first_ = std::min(first_, run / 64);
  ++size_;
}

void RunSet::erase(std::size_t run) {
  words_[run / 64] &= ~(std::uint64_t{1} << (run % 64));
  --size_;
}

std::optional<std::size_t> RunSet::lowest() {
  if (size_ == 0) return std::nullopt;
  while (words_[first_] == 0) ++first_;
  return first_ * 64 + static_cast<std::size_t>(std::countr_zero(words_[first_]));
}

PagePool::PagePool(std::size_t runs, std::size_t page_bytes, const MakePageMemory& make)
    : runs_(runs),
      page_bytes_(page_bytes),
      pages_free_(runs * kRunPages),
      memory_(make(pages_free_ * page_bytes)),
      k_plane_(memory_->plane(Plane::k)),
      v_plane_(memory_->plane(Plane::v)),
      readers_(pages_free_ * sizeof(std::uint32_t)),
      taken_(runs * sizeof(std::uint16_t)),
      whole_(runs, true),
      broken_(runs, false),
      digests_(readers_.as<std::uint32_t>().first(pages_free_)) {}

std::optional<PageId> PagePool::take_run() {
  const auto run = whole_.lowest();
  if (!run) return std::nullopt;
  whole_.erase(*run);
  taken_.as<std::uint16_t>()[*run] = kAllTaken;
  const std::size_t first = *run * kRunPages;
  for (std::size_t i = 0; i < kRunPages; ++i) readers_.as<std::uint32_t>()[first + i] = 1;
  pages_free_ -= kRunPages;
  return static_cast<PageId>(first);
}

PageId PagePool::take_page() {
  auto run = broken_.lowest();
  if (!run) {
    run = whole_.lowest();
    check(run.has_value(), "a page is taken from an empty pool");
    whole_.erase(*run);
    broken_.insert(*run);
  }
  std::uint16_t& taken = taken_.as<std::uint16_t>()[*run];
  const int bit = std::countr_one(taken);
  taken = static_cast<std::uint16_t>(taken | (1u << bit));
  if (taken == kAllTaken) broken_.erase(*run);
  const std::size_t page = *run * kRunPages + static_cast<std::size_t>(bit);
  readers_.as<std::uint32_t>()[page] = 1;
  --pages_free_;
  return static_cast<PageId>(page);
}

void PagePool::share(std::span<const PageId> pages) {
  const std::span<std::uint32_t> readers = readers_.as<std::uint32_t>();
  while (!pages.empty()) {
    const auto some = pages.first(std::min<std::size_t>(kRunPages, pages.size()));
    pages = pages.subspan(some.size());
    if (is_run(some)) {  // as most of a long sequence's pages: a cache line of counts
      for (std::uint32_t& of_page : readers.subspan(some[0], kRunPages)) ++of_page;
      continue;
    }
    for (const PageId page : some) {
      if (page != kNoPage) ++readers[page];
    }
  }
}

void PagePool::release(PageId page) {
  std::uint32_t& readers = readers_.as<std::uint32_t>()[page];
  check(readers > 0, "a free page is released");
  if (--readers > 0) return;
  digests_.drop(page);
  const std::size_t run = page / kRunPages;
  std::uint16_t& taken = taken_.as<std::uint16_t>()[run];
  const bool was_full = taken == kAllTaken;
  taken = static_cast<std::uint16_t>(taken & ~(1u << (page % kRunPages)));
  if (was_full) broken_.insert(run);
  if (taken == 0) {
    broken_.erase(run);
    whole_.insert(run);
  }
  ++pages_free_;
}

void PagePool::copy(PageId from, PageId to) {
  ++changes_;
  for (const Plane plane : {Plane::k, Plane::v}) {
    memory_->copy(plane, from * page_bytes_, to * page_bytes_, page_bytes_);
  }
  digests_.copy(from, to);
}

std::vector<kernels::PageCopy> PagePool::places_of(std::span<const Copy> pages) const {
  std::vector<kernels::PageCopy> places;
  places.reserve(pages.size());
  for (const Copy& copy : pages) places.push_back({copy.page * page_bytes_, copy.bytes});
  return places;
}

void PagePool::save(std::span<const Copy> pages) const {
  memory_->save(places_of(pages), page_bytes_);
}

void PagePool::load(std::span<const Copy> pages) {
  ++changes_;
  memory_->load(places_of(pages), page_bytes_);
}

void PagePool::read(Plane plane, PageId first, std::span<std::byte> to) const {
  memory_->read(plane, first * page_bytes_, to);
}

void PagePool::write(Plane plane, std::span<const std::byte> from, PageId first) {
  ++changes_;
  memory_->write(plane, first * page_bytes_, from);
}

void PagePool::move_rows(const kernels::KvFormat& format, std::span<const Step> rows) {
  ++changes_;
  std::vector<kernels::RowMove> moves(rows.size());
  const auto move = [&](std::size_t offset, std::size_t bytes) {
    const auto place = [&](const RowPlace& at) {
      return at.page * page_bytes_ + offset + static_cast<std::size_t>(at.slot) * bytes;
    };
    for (std::size_t i = 0; i < rows.size(); ++i) moves[i] = {place(rows[i].from), place(rows[i].to)};
    for (const Plane plane : {Plane::k, Plane::v}) memory_->move(plane, moves, bytes);
  };
  move(0, format.row_bytes());
  if (format.type == KvType::q8_0) move(format.scale_offset(), sizeof(float));
}

}  // namespace glimpse::kv
