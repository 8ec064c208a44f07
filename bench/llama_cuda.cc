#include "bench/llama_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
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

struct Times {
  std::vector<double> steps, prefills;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

std::vector<LlamaSpeed> measure_llama(const std::filesystem::path& program, const std::filesystem::path& model,
                                      std::span<const int> batches, std::int64_t depth) {
  const int most = *std::max_element(batches.begin(), batches.end());
  std::string runs;
  for (int again = 0; again < (depth * most <= kShort ? 3 : 1); ++again) {
    for (const int batch : batches) runs += (runs.empty() ? "" : ",") + std::to_string(batch);
  }
  const std::string command = fmt::format(
      "{} -m {} -ngl 99 -fa on -c {} -b 2048 -ub 2048 -npp {} -ntg {} -npl {} --output-format jsonl",
      quoted(program.string()), quoted(model.string()), most * (depth + kTokens + 16), depth, kTokens, runs);
  const std::string text = output_of(command);
  std::map<int, Times> times;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty() || line.front() != '{') continue;
    const auto row = nlohmann::json::parse(line, nullptr, false);
    if (!row.contains("pl") || !row.contains("t_tg") || !row.contains("t_pp")) continue;
    times[row["pl"].get<int>()].steps.push_back(row["t_tg"].get<double>() / kTokens);
    times[row["pl"].get<int>()].prefills.push_back(row["t_pp"].get<double>());
  }
  std::vector<LlamaSpeed> speeds;
  for (const int batch : batches) {
    if (!times.contains(batch)) {
      const std::size_t shown = std::min<std::size_t>(text.size(), 600);
      throw UserError(fmt::format("{} gave no result for {} sequences; it printed: {}", program.string(), batch,
                                  text.substr(text.size() - shown)));
    }
    speeds.push_back({batch, median(times[batch].steps), median(times[batch].prefills)});
  }
  return speeds;
}

}  // namespace glimpse::bench
