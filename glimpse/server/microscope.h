// The files of the microscope, the page at `/`: built into the program from microscope/. Pure; any thread.
#pragma once

#include <string_view>

#include "glimpse/server/http.h"

namespace glimpse::server {

/// "/", "/microscope.css" or "/microscope.js", with a content policy that lets the page load and ask this server alone.
HttpAnswer microscope_file(std::string_view path);

}  // namespace glimpse::server
