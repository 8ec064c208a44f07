// Slots for pages that wait (K, then V, of one page each) in pieces of a WaitingMemory, counted by reader as pages are.
// Owns the memory. One thread at a time, except for reading the bytes of slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "glimpse/kv/page_digests.h"
#include "glimpse/kv/waiting_memory.h"

namespace glimpse::kv {

class PageSlots {
 public:
  using Slot = std::int32_t;

  /// `digests` are told what becomes of slots.
  PageSlots(std::unique_ptr<WaitingMemory> memory, std::size_t page_bytes, PageDigests& digests);

  /// Room for `slots` more, so that taking them cannot fail. Throws UserError when the memory has none.
  void reserve(std::size_t slots);
  /// A slot with one reader; there must be room.
  Slot take();
  void share(Slot slot) { ++readers_[static_cast<std::size_t>(slot)]; }
  /// One reader less; the last one frees the slot.
  void release(Slot slot);

  /// [2 * page_bytes]: K, then V.
  std::byte* data(Slot slot) const;
  std::size_t used() const { return readers_.size() - free_.size(); }
  /// A slot is the (slot % piece_slots)th of piece slot / piece_slots.
  std::span<std::byte* const> pieces() const { return pieces_; }
  std::size_t piece_slots() const { return piece_slots_; }

 private:
  void grow();

  std::unique_ptr<WaitingMemory> memory_;
  PageDigests& digests_;
  std::size_t slot_bytes_;
  std::size_t piece_slots_;
  std::vector<std::byte*> pieces_;
  std::vector<std::uint32_t> readers_;  ///< [slot] 0: free
  std::vector<Slot> free_;              ///< the last is taken first
};

}  // namespace glimpse::kv
