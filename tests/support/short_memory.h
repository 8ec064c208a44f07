// Lets operator new of this test program fail, to see what a call leaves behind. For one thread at a time: its own
// allocations alone fail.
#pragma once

#include <cstddef>

namespace glimpse::testing {

struct Shortage {
  int passing = 0;              ///< allocations that still succeed
  bool lasting = false;         ///< all fail from there on; else the next alone
  std::size_t least_bytes = 0;  ///< smaller ones always succeed and are not counted
};

/// While it lives, allocations of this thread throw std::bad_alloc.
class ShortMemory {
 public:
  explicit ShortMemory(const Shortage& shortage);
  ~ShortMemory();
  ShortMemory(const ShortMemory&) = delete;
  ShortMemory& operator=(const ShortMemory&) = delete;
  /// Something has failed.
  bool met() const;
};

}  // namespace glimpse::testing
