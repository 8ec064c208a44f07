// Memory of the host where pages wait that the cache gave back. It grows by pieces, which never move. Owns them. One
// thread at a time, except for their bytes.
#pragma once

#include <cstddef>

namespace glimpse::kv {

class WaitingMemory {
 public:
  virtual ~WaitingMemory() = default;
  /// Bytes that a piece may hold at least; more where one page needs more.
  virtual std::size_t piece_bytes() const = 0;
  /// One more piece of so many bytes; it lives as long as this. `held`: bytes of all pieces before, for the message.
  /// Throws UserError when there is no room.
  virtual std::byte* grow(std::size_t bytes, std::size_t held) = 0;
};

}  // namespace glimpse::kv
