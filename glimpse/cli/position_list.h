// A set of positions in few bytes, for pages that hold thousands of them. The format, which picture/page.js reads: the
// number of runs as a varint (7 bits a byte, low ones first); one byte with two parameters of Rice codes, that of gaps
// in its high half and that of lengths in its low half; then for each run the gap since the last one's end and its
// length less 1, bits from the highest of each byte on. Values; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace glimpse::cli {

/// `positions` ascending, without repetition, from 0.
std::string encode_positions(std::span<const std::int32_t> positions);

std::string base64(std::string_view bytes);

}  // namespace glimpse::cli
