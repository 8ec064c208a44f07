#include "tests/cli/trace_lines.h"

#include <gtest/gtest.h>

#include <sstream>

#include "tests/cli/process.h"

namespace glimpse::cli {

std::vector<nlohmann::json> json_lines(const std::filesystem::path& path) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(read_file(path));
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TraceLines trace_lines(const std::filesystem::path& path) {
  TraceLines trace;
  for (nlohmann::json& line : json_lines(path)) {
    const std::string kind = line.value("kind", "");
    if (kind == "header") {
      trace.header = std::move(line);
    } else if (kind == "end") {
      trace.end = std::move(line);
    } else {
      (kind == "token" ? trace.tokens : kind == "step" ? trace.steps : trace.sets).push_back(std::move(line));
    }
  }
  return trace;
}

std::filesystem::path traced_sets(const std::string& text, const std::vector<std::string>& more) {
  const auto file = scratch("text.txt"), path = scratch("sets.jsonl");
  write_file(file, text);
  std::vector<std::string> words{"eval", "sets", "-m", model(), "-f", file, "-t", "2", "-o", path};
  words.insert(words.end(), more.begin(), more.end());
  const Outcome outcome = run_program(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return path;
}

}  // namespace glimpse::cli
