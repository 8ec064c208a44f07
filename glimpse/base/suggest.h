// "did you mean" for names that the user typed. Any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace glimpse {

/// The known name nearest to `typed` by edit distance, or empty when none is near (more than a third of it differs).
std::string_view nearest_name(std::string_view typed, std::span<const std::string_view> known);

/// "unknown policy 'tidl'; did you mean 'tidal'? Known: full, streaming, tidal"
std::string unknown_name(std::string_view kind, std::string_view typed, std::span<const std::string_view> known);

}  // namespace glimpse
