#include "glimpse/cli/arrivals.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <string_view>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/cli/setup.h"
#include "glimpse/plan/json_reader.h"

namespace glimpse::cli {
namespace {

constexpr std::int64_t kMostPrompt = 1 << 24, kMostAnswer = 65536, kMostRequests = 65536;
constexpr double kLongest = 1e6;  // seconds

/// Requests a second; infinite for "inf".
double parse_rate(const std::string& text) {
  if (text == "inf") return std::numeric_limits<double>::infinity();
  double rate = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
  if (error != std::errc() || end != text.data() + text.size() || !(rate >= 1e-3 && rate <= 1e6)) {
    throw UserError(fmt::format("--rate '{}': give requests a second, from 0.001 to 1000000, or inf for all at once",
                                excerpt(text)));
  }
  return rate;
}

/// N, or LEAST-MOST.
std::pair<std::int64_t, std::int64_t> parse_prompt_tokens(const std::string& text) {
  const std::size_t dash = std::min(text.find('-'), text.size());
  const auto number = [](std::string_view part) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc() && end == part.data() + part.size() ? value : 0;
  };
  const std::string_view view = text;
  const std::int64_t least = number(view.substr(0, dash));
  const std::int64_t most = dash < text.size() ? number(view.substr(dash + 1)) : least;
  if (least < 1 || most < least || most > kMostPrompt) {
    throw UserError(
        fmt::format("--prompt-tokens '{}': give a number from 1 to {}, or two with a dash between, the "
                    "smaller first, as in 2000-6000",
                    excerpt(text), kMostPrompt));
  }
  return {least, most};
}

// Not the distributions of <random>: those differ between standard libraries.
std::vector<PlannedArrival> drawn(const Arguments& arguments) {
  const double rate = parse_rate(arguments.rate);
  const auto [least, most] = parse_prompt_tokens(arguments.prompt_tokens);
  const std::vector<Arm> arms = parse_arms(arguments.arms);
  std::mt19937_64 random(static_cast<std::uint64_t>(arguments.seed));
  std::vector<PlannedArrival> arrivals;
  double at = 0;
  for (std::int64_t i = 0; i < arguments.requests; ++i) {
    const double share = static_cast<double>(random() >> 11) * 0x1p-53;  // [0, 1)
    if (i > 0) at -= std::log1p(-share) / rate;
    const auto more = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most - least + 1));
    arrivals.push_back({at, least + more, arguments.bench_tokens, arms[static_cast<std::size_t>(i) % arms.size()]});
  }
  return arrivals;
}

PlannedArrival parse_line(std::string_view line, std::string_view what) {
  const plan::JsonValue json = plan::parse_json(line, what);
  plan::JsonObject object(json, what, "$");
  const auto whole = [&](std::string_view key, std::int64_t highest) {
    const std::int64_t value = object.integer(key, std::nullopt);
    if (value < 1 || value > highest) {
      object.refuse(object.path_of(key), fmt::format("{} is not from 1 to {}", value, highest));
    }
    return value;
  };
  PlannedArrival arrival;
  arrival.at_s = object.number_of(object.need("at"), object.path_of("at"));
  if (arrival.at_s < 0 || arrival.at_s > kLongest) {
    object.refuse(object.path_of("at"), fmt::format("{:g} is not from 0 to {:g} seconds", arrival.at_s, kLongest));
  }
  arrival.prompt_tokens = whole("prompt_tokens", kMostPrompt);
  arrival.tokens = whole("tokens", kMostAnswer);
  const std::string arm = object.text("attn");
  object.finish();
  arrival.arm = parse_of(what, arm, parse_arm);
  return arrival;
}

std::vector<PlannedArrival> read(const std::string& path) {
  const std::string text = read_file(path);
  std::vector<PlannedArrival> arrivals;
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string what = fmt::format("--arrivals '{}', line {}", path, number);
    if (std::ssize(arrivals) == kMostRequests) {
      throw UserError(fmt::format("{}: a file has at most {} requests", what, kMostRequests));
    }
    arrivals.push_back(parse_line(line, what));
  }
  if (arrivals.empty()) {
    throw UserError(
        fmt::format("--arrivals '{}' has no request; write lines as {{\"at\": 0.5, \"prompt_tokens\": 2000, "
                    "\"tokens\": 64, \"attn\": \"tidal:512\"}}",
                    path));
  }
  std::stable_sort(arrivals.begin(), arrivals.end(), [](const auto& a, const auto& b) { return a.at_s < b.at_s; });
  return arrivals;
}

}  // namespace

std::vector<PlannedArrival> planned_arrivals(const Arguments& arguments) {
  std::vector<PlannedArrival> arrivals = arguments.arrivals ? read(*arguments.arrivals) : drawn(arguments);
  std::int64_t all = 0;
  for (const PlannedArrival& each : arrivals) all += each.prompt_tokens;
  constexpr std::int64_t kMostText = 1 << 28;
  if (all > kMostText) {
    throw UserError(fmt::format("the prompts have {} tokens together, and this takes {}; give fewer or shorter ones",
                                all, kMostText));
  }
  return arrivals;
}

}  // namespace glimpse::cli
