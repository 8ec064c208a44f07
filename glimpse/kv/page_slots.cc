#include "glimpse/kv/page_slots.h"

#include <algorithm>
#include <utility>

#include "glimpse/base/error.h"

namespace glimpse::kv {

PageSlots::PageSlots(std::unique_ptr<WaitingMemory> memory, std::size_t page_bytes, PageDigests& digests)
    : memory_(std::move(memory)),
      digests_(digests),
      slot_bytes_(2 * page_bytes),
      piece_slots_(std::max<std::size_t>(1, memory_->piece_bytes() / slot_bytes_)) {}

void PageSlots::reserve(std::size_t slots) {
  while (free_.size() < slots) grow();
}

void PageSlots::grow() {
  pieces_.reserve(pieces_.size() + 1);
  readers_.reserve(readers_.size() + piece_slots_);
  free_.reserve(readers_.size() + piece_slots_);
  digests_.make_slots(readers_.size() + piece_slots_);
  const std::size_t bytes = piece_slots_ * slot_bytes_;
  pieces_.push_back(memory_->grow(bytes, pieces_.size() * bytes));
  const auto first = static_cast<Slot>(readers_.size());
  readers_.resize(readers_.size() + piece_slots_, 0);
  for (auto i = static_cast<Slot>(piece_slots_); i-- > 0;) free_.push_back(first + i);
}

PageSlots::Slot PageSlots::take() {
  check(!free_.empty(), "a slot is taken after room for it was made");
  const Slot slot = free_.back();
  free_.pop_back();
  readers_[static_cast<std::size_t>(slot)] = 1;
  return slot;
}

void PageSlots::release(Slot slot) {
  std::uint32_t& readers = readers_[static_cast<std::size_t>(slot)];
  check(readers > 0, "a free slot is released");
  if (--readers > 0) return;
  digests_.drop_waiting(slot);
  free_.push_back(slot);
}

std::byte* PageSlots::data(Slot slot) const {
  const auto at = static_cast<std::size_t>(slot);
  return pieces_[at / piece_slots_] + at % piece_slots_ * slot_bytes_;
}

}  // namespace glimpse::kv
