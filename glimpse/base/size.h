// Counts of tokens, rows and bytes are signed everywhere; the containers that hold them are not.
#pragma once

#include <cstddef>
#include <cstdint>

namespace glimpse {

/// `count`, at least 0, as a container's size or place.
constexpr std::size_t size(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

}  // namespace glimpse
