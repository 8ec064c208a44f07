// glimpse inspect of a profile: in words, and as a page with --html. One thread.
#pragma once

#include <string_view>

#include "glimpse/cli/arguments.h"

namespace glimpse::cli {

/// `json`: the file's text. Throws UserError for one that is no profile.
int inspect_profile(const Arguments& arguments, std::string_view json);

}  // namespace glimpse::cli
