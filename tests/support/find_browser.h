// Where tests of pages find a browser. Any thread that changes no environment.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>

namespace glimpse::reference {

/// Path of a Chromium or Chrome; none: PATH has none (scripts/install-packages --browser).
inline std::optional<std::string> find_browser() {
  const char* path = std::getenv("PATH");
  for (const char* name : {"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"}) {
    std::istringstream folders(path == nullptr ? "" : path);
    for (std::string folder; std::getline(folders, folder, ':');) {
      const std::string file = folder + "/" + name;
      if (::access(file.c_str(), X_OK) == 0) return file;
    }
  }
  return std::nullopt;
}

}  // namespace glimpse::reference
