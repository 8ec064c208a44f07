// Where pages wait that the cache gave back: slots of one page (K, then V) in a temporary file, mapped. The file has no
// name once it is made, so it goes with its last user whatever happens. Owns file and mappings; slots are counted by
// reader, as pages are. One thread at a time, except for reading the bytes of slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

namespace glimpse::kv {

class PageFile {
 public:
  using Slot = std::int32_t;

  /// Makes the file in `folder`. Throws UserError that names it: missing, no folder, not writable.
  PageFile(const std::filesystem::path& folder, std::size_t page_bytes);
  ~PageFile();
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;

  /// Room for `slots` more, so that taking them cannot fail. Throws UserError when the disk is full.
  void reserve(std::size_t slots);
  /// A slot with one reader; there must be room.
  Slot take();
  void share(Slot slot) { ++readers_[static_cast<std::size_t>(slot)]; }
  /// One reader less; the last one frees the slot.
  void release(Slot slot);

  /// [2 * page_bytes]: K, then V.
  std::byte* data(Slot slot) const;
  std::size_t slots_used() const { return readers_.size() - free_.size(); }
  std::size_t bytes() const { return pieces_.size() * piece_bytes_; }

 private:
  void grow();

  std::filesystem::path folder_;
  std::size_t slot_bytes_;
  std::size_t piece_slots_;
  std::size_t piece_bytes_;  ///< what the file grows by and is mapped in
  int file_ = -1;
  std::vector<std::byte*> pieces_;
  std::vector<std::uint32_t> readers_;  ///< [slot] 0: free
  std::vector<Slot> free_;              ///< the last is taken first
};

}  // namespace glimpse::kv
