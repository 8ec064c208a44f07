// How a fault of a model file is told: one line, naming the file, safe to print whatever the file holds. Any thread.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "glimpse/base/error.h"

namespace glimpse::model {

/// Text of the file as it may be shown: printable ASCII (what a file holds may be in no encoding), at most 60
/// characters.
std::string shown(std::string_view text);

/// Throws UserError "'LABEL': what".
template <class... Arguments>
[[noreturn]] void fail_file(std::string_view label, fmt::format_string<Arguments...> what, Arguments&&... arguments) {
  throw UserError(fmt::format("'{}': {}", label, fmt::format(what, std::forward<Arguments>(arguments)...)));
}

/// Throws UserError "'PATH': there is no such file; CURE" where that is so.
void require_file(const std::filesystem::path& path, std::string_view cure);

}  // namespace glimpse::model
