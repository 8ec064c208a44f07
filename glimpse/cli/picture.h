// A trace or a profile as one page of HTML that needs nothing else: no network, no file beside it. The pages' own
// source is in picture/, and is built into the program. Any thread.
#pragma once

#include <string>

#include "glimpse/cli/trace.h"
#include "glimpse/plan/profile.h"

namespace glimpse::cli {

std::string picture_page(const Trace& trace);
std::string profile_page(const plan::Profile& profile);

}  // namespace glimpse::cli
