// glimpse inspect FILE.session: whose it is, what it holds, and that it is whole. One thread.
#pragma once

#include <string>

#include "glimpse/cli/arguments.h"

namespace glimpse::cli {

/// True for a file that begins as a saved session does.
bool looks_like_session(const std::string& path);

/// Throws UserError for one that is damaged or cut off.
int inspect_session(const Arguments& arguments);

}  // namespace glimpse::cli
