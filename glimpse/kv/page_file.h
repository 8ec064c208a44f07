// Where a host's pages wait: a temporary file, mapped. It has no name once it is made, so it goes with its last user
// whatever happens. Owns file and mappings. Threads: as WaitingMemory.
#pragma once

#include <filesystem>
#include <vector>

#include "glimpse/kv/waiting_memory.h"

namespace glimpse::kv {

class PageFile final : public WaitingMemory {
 public:
  /// Makes the file in `folder`. Throws UserError that names it: missing, no folder, not writable.
  explicit PageFile(const std::filesystem::path& folder);
  ~PageFile() override;
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;

  std::size_t piece_bytes() const override;
  /// Throws UserError when the disk is full.
  std::byte* grow(std::size_t bytes, std::size_t held) override;

 private:
  struct Piece {
    void* bytes = nullptr;
    std::size_t size = 0;
  };
  std::filesystem::path folder_;
  int file_ = -1;
  std::size_t size_ = 0;  ///< of the file
  std::vector<Piece> pieces_;
};

}  // namespace glimpse::kv
