#include "bench/llama_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "glimpse/base/error.h"

namespace glimpse::bench {
namespace {

constexpr int kTokens = 64;
/// Prompts that take long are read once.
constexpr std::int64_t kShort = 16384;

std::string quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// What a command prints, on both streams.
std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen((command + " 2>&1").c_str(), "r"), pclose);
  if (pipe == nullptr) throw UserError(fmt::format("{} does not start", command));
  std::string text;
  std::array<char, 4096> piece{};
  while (const std::size_t count = std::fread(piece.data(), 1, piece.size(), pipe.get())) {
    text.append(piece.data(), count);
  }
  return text;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

LlamaSpeed measure_llama(const std::filesystem::path& program, const std::filesystem::path& model,
                         const LlamaCase& what) {
  const bool is_short = what.depth * what.batch <= kShort;
  const std::string batch = std::to_string(what.batch);
  const std::string command =
      fmt::format("{} -m {} -ngl 99 -fa on -c {} -b 2048 -ub 2048 -npp {} -ntg {} -npl {} --output-format jsonl",
                  quoted(program.string()), quoted(model.string()), what.batch * (what.depth + kTokens + 16), what.depth,
                  kTokens, is_short ? batch + "," + batch + "," + batch : batch);
  const std::string text = output_of(command);
  std::vector<double> steps, prefills;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty() || line.front() != '{') continue;
    const auto row = nlohmann::json::parse(line, nullptr, false);
    if (!row.contains("t_tg") || !row.contains("t_pp")) continue;
    steps.push_back(row["t_tg"].get<double>() / kTokens);
    prefills.push_back(row["t_pp"].get<double>());
  }
  if (steps.empty()) {
    const std::size_t shown = std::min<std::size_t>(text.size(), 600);
    throw UserError(fmt::format("{} gave no result; it printed: {}", program.string(), text.substr(text.size() - shown)));
  }
  return {median(steps), median(prefills)};
}

}  // namespace glimpse::bench
