// The tier below a cache, and its pages as bytes.
#include <fmt/format.h>

#include <utility>

#include "glimpse/kv/cache_impl.h"

namespace glimpse::kv {

void Cache::Impl::require_pages(std::size_t pages) const {
  if (pages <= pool.pages_free()) return;
  throw CacheFull(fmt::format("the KV cache is full: {} pages wait in the tier and are needed, and {} are free; {}",
                              pages, pool.pages_free(), shape.cure));
}

void Cache::open_tier(const std::filesystem::path& folder) {
  if (impl_->tier == nullptr) {
    impl_->tier = std::make_unique<PageSlots>(impl_->pool.make_waiting(folder), impl_->shape.format.page_bytes(),
                                              impl_->pool.digests());
  }
}

bool Cache::may_spill(SequenceId sequence) const {
  return impl_->tier != nullptr && impl_->peek(sequence).marks.empty();
}

void Cache::spill(SequenceId id, std::span<const HeadPage> pages) {
  check(may_spill(id), "pages are spilled to a tier that is open, and not while a mark is held");
  Sequence& sequence = impl_->change(id);
  sequence.has_copies = true;
  const auto table_of = [&](const HeadPage& page) -> HeadTable& {
    return sequence.heads[impl_->head_index(page.layer, page.head)];
  };
  std::size_t slots = 0;
  for (const HeadPage& page : pages) {
    slots += table_of(page).copy_of(page.page) < 0;
    table_of(page).reserve_copies();
  }
  impl_->tier->reserve(slots);
  impl_->copies.clear();
  impl_->copies.reserve(slots);
  for (const HeadPage& page : pages) table_of(page).spill(impl_->pool, *impl_->tier, page.page, impl_->copies);
  impl_->pool.save(impl_->copies);
}

void Cache::recall(SequenceId id, std::span<const HeadPage> pages) {
  Sequence& sequence = impl_->change(id);
  impl_->require_pages(pages.size());
  impl_->copies.clear();
  impl_->copies.reserve(pages.size());
  for (const HeadPage& page : pages) {
    HeadTable& table = sequence.heads[impl_->head_index(page.layer, page.head)];
    table.recall(impl_->pool, *impl_->tier, page.page, impl_->copies);
  }
  impl_->pool.load(impl_->copies);
}

void Cache::recall_all(SequenceId id) {
  if (impl_->tier == nullptr || !impl_->peek(id).has_copies) return;
  Sequence& sequence = impl_->change(id);
  std::size_t waiting = 0;
  for (const HeadTable& table : sequence.heads) waiting += static_cast<std::size_t>(table.waiting());
  impl_->require_pages(waiting);
  impl_->copies.clear();
  impl_->copies.reserve(waiting);
  if (waiting > 0) sequence.serial = ++impl_->last_table;
  for (HeadTable& table : sequence.heads) {
    for (std::int32_t page = 0; table.waiting() > 0; ++page) {
      if (!table.resident(page)) table.recall(impl_->pool, *impl_->tier, page, impl_->copies);
    }
    table.forget_copies(*impl_->tier);
  }
  sequence.has_copies = false;
  impl_->pool.load(impl_->copies);
}

void Cache::put_away(SequenceId id, bool shared) {
  check(may_spill(id), "pages are put away to a tier that is open, and not while a mark is held");
  Sequence& sequence = impl_->change(id);
  sequence.has_copies = true;
  std::size_t slots = 0;
  for (HeadTable& table : sequence.heads) {
    slots += static_cast<std::size_t>(table.copies_to_put_away(impl_->pool, shared));
    table.reserve_away();
  }
  impl_->tier->reserve(slots);
  impl_->copies.clear();
  impl_->copies.reserve(slots);
  for (HeadTable& table : sequence.heads) table.put_away(impl_->pool, *impl_->tier, shared, impl_->copies);
  impl_->pool.save(impl_->copies);
}

void Cache::bring_back(SequenceId id) {
  const auto away = static_cast<std::size_t>(pages_away(id));
  impl_->require_pages(away);
  impl_->copies.clear();
  impl_->copies.reserve(away);
  Sequence& sequence = impl_->change(id);
  sequence.serial = ++impl_->last_table;
  for (HeadTable& table : sequence.heads) {
    if (table.away() > 0) table.bring_back(impl_->pool, *impl_->tier, impl_->copies);
  }
  impl_->pool.load(impl_->copies);
}

std::int64_t Cache::pages_away(SequenceId sequence) const {
  std::int64_t sum = 0;
  for (const HeadTable& table : impl_->peek(sequence).heads) sum += table.away();
  return sum;
}

std::span<const std::uint64_t> Cache::waiting_bits(SequenceId sequence, int layer, int head) const {
  return impl_->peek(sequence).heads[impl_->head_index(layer, head)].waiting_bits();
}

WaitingPages Cache::waiting() const {
  if (impl_->tier == nullptr) return {};
  return {impl_->tier->pieces(), static_cast<std::int32_t>(impl_->tier->piece_slots())};
}

std::int32_t Cache::waiting_slot(SequenceId sequence, const HeadPage& page) const {
  return impl_->peek(sequence).heads[impl_->head_index(page.layer, page.head)].copy_of(page.page);
}

std::int64_t Cache::waiting_pages(SequenceId sequence, int layer, int head) const {
  return impl_->peek(sequence).heads[impl_->head_index(layer, head)].waiting();
}

const std::byte* Cache::read_page(SequenceId sequence, const HeadPage& page, Plane plane,
                                  std::vector<std::byte>& space) const {
  const HeadTable& table = impl_->peek(sequence).heads[impl_->head_index(page.layer, page.head)];
  const std::size_t bytes = impl_->shape.format.page_bytes();
  check(page.page >= 0 && static_cast<std::size_t>(page.page) < table.pages().size(),
        "a head has the page that is read");
  if (!table.resident(page.page)) {
    return impl_->tier->data(table.copy_of(page.page)) + (plane == Plane::v ? bytes : 0);
  }
  const PageId id = table.pages()[static_cast<std::size_t>(page.page)];
  if (impl_->pool.on_host()) {
    return (plane == Plane::k ? impl_->pool.k_plane() : impl_->pool.v_plane()) + id * bytes;
  }
  space.resize(bytes);
  impl_->pool.read(plane, id, space);
  return space.data();
}

void Cache::write_pages(SequenceId sequence, const HeadPage& first, Plane plane, std::span<const std::byte> bytes) {
  const HeadTable& table = impl_->peek(sequence).heads[impl_->head_index(first.layer, first.head)];
  const std::size_t page_bytes = impl_->shape.format.page_bytes();
  const std::size_t count = bytes.size() / page_bytes;
  const auto begin = static_cast<std::size_t>(first.page);
  check(bytes.size() % page_bytes == 0 && begin + count <= table.pages().size(), "whole pages of the head are written");
  for (std::size_t page = 0, run = 1; page < count; page += run, run = 1) {
    const PageId id = table.pages()[begin + page];
    check(id != kNoPage, "pages that are written are resident");
    while (page + run < count && table.pages()[begin + page + run] == id + static_cast<PageId>(run)) ++run;
    impl_->pool.write(plane, bytes.subspan(page * page_bytes, run * page_bytes), id);
  }
}

}  // namespace glimpse::kv
