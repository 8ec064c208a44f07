// A headless Chromium for tests of pages, where PATH has one (scripts/install-packages --browser). One thread.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace glimpse::cli {

/// The browser's path; none: PATH has none.
std::optional<std::string> find_browser();

/// Opens a copy of the page from disk whose last script is `script` and gives what it put into `result`, an object.
/// Without an answer the test fails and the object is empty.
nlohmann::json ask_page(const std::string& browser, const std::filesystem::path& page, const std::string& script);

}  // namespace glimpse::cli
