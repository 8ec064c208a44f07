// Plain English words for lists of words. Constants; any thread.
#pragma once

#include <span>
#include <string_view>

namespace glimpse::evaluate {

/// Each once, lower case letters alone.
std::span<const std::string_view> vocabulary();

}  // namespace glimpse::evaluate
