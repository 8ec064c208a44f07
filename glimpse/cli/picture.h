// A trace as one page of HTML that needs nothing else: no network, no file beside it. The page's own source is in
// picture/, and is built into the program. Any thread.
#pragma once

#include <string>

#include "glimpse/cli/trace.h"

namespace glimpse::cli {

std::string picture_page(const Trace& trace);

}  // namespace glimpse::cli
