// Checks of UTF-8 (RFC 3629: no surrogates, no overlong forms, nothing over U+10FFFF). Any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace glimpse::text {

enum class Utf8Kind { complete, partial, invalid };

/// What stands at the head of `bytes` (not empty). `length` is that of the whole sequence when complete, of what is
/// there when partial, and of the bytes that one U+FFFD replaces when invalid (Unicode's "maximal subpart").
struct Utf8Head {
  Utf8Kind kind = Utf8Kind::invalid;
  std::size_t length = 1;
};
Utf8Head utf8_head(std::string_view bytes);

/// Offset of the first byte that is not part of a whole sequence; empty when all of `bytes` is valid.
std::optional<std::size_t> find_invalid_utf8(std::string_view bytes);

}  // namespace glimpse::text
