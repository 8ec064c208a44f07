// A trace as plain JSON lines, for tests: read without the program's own reader. Values; one thread.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace glimpse::cli {

struct TraceLines {
  nlohmann::json header, end;
  std::vector<nlohmann::json> tokens, sets, steps;
};

/// Every line of a file; a line that is no JSON fails the test.
std::vector<nlohmann::json> json_lines(const std::filesystem::path& path);

/// The lines sorted by kind, in their order.
TraceLines trace_lines(const std::filesystem::path& path);

/// Runs `eval sets` on `text` with a few steps through the plan that `more` asks for; returns the trace's path.
std::filesystem::path traced_sets(const std::string& text, const std::vector<std::string>& more);

}  // namespace glimpse::cli
