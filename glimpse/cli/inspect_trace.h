// glimpse inspect of a trace: in words, and as a page with --html. One thread.
#pragma once

#include "glimpse/cli/arguments.h"

namespace glimpse::cli {

int inspect_trace(const Arguments& arguments);

}  // namespace glimpse::cli
