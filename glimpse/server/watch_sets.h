// Sets of positions as a watched request keeps them, and as a viewer sees them: shares of bins. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace glimpse::server {

/// Positions in their order, each as the difference from the one before: 7 bits a byte, low ones first, its sign in the
/// lowest. An ascending set of neighbours costs a byte a token.
std::string pack_positions(std::span<const std::int32_t> positions);
std::vector<std::int32_t> unpack_positions(std::string_view packed);

/// Positions in several ascending sets, each once, ascending.
std::vector<std::int32_t> union_of_sets(std::span<const std::vector<std::int32_t>> sets);

/// Tokens of a bin, a power of two: the least for which `tokens` fill at most `bins`.
std::int64_t bin_width(std::int64_t tokens, std::int64_t bins);

/// A digit for each bin of [0, tokens): '0' where no token of it is in the set, 'f' where all are, else the share in
/// fifteenths, '1' to 'e'. `positions` below `tokens`, each once.
std::string bin_digits(std::span<const std::int32_t> positions, std::int64_t tokens, std::int64_t width);

}  // namespace glimpse::server
