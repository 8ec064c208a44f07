// Refusals that the sources of profiles share. Any thread.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/plan/plan.h"

namespace glimpse::plan {

/// Throws UserError: "profile: WHERE: TEXT".
template <class... Args>
[[noreturn]] void refuse_profile(std::string_view where, fmt::format_string<Args...> text, Args&&... args) {
  throw UserError(fmt::format("profile: {}: {}", where, fmt::format(text, std::forward<Args>(args)...)));
}

inline bool is_shown(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

/// A name that a terminal may show and a file may hold.
inline void check_name(std::string_view where, std::string_view what, std::string_view name, std::size_t most = 64) {
  if (!name.empty() && name.size() <= most && is_shown(name)) return;
  refuse_profile(where, "{} '{}': give 1 to {} printable ASCII characters", what, excerpt(name), most);
}

inline constexpr std::size_t kMostOptions = 256;  ///< characters

/// What a row is known by.
inline void check_row_name(const std::string& where, std::string_view method, const std::string& budget,
                           std::string_view options) {
  check_name(where, "method", method);
  if (!options.empty()) check_name(where, "options", options, kMostOptions);
  try {
    parse_budget(budget);
  } catch (const UserError& error) {
    refuse_profile(where, "{}", error.what());
  }
}

}  // namespace glimpse::plan
