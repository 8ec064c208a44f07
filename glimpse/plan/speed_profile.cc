#include "glimpse/plan/speed_profile.h"

#include <cmath>
#include <set>
#include <tuple>

#include "glimpse/base/dtype.h"
#include "glimpse/plan/checks.h"
#include "glimpse/plan/profile_checks.h"

namespace glimpse::plan {
namespace {

constexpr std::size_t kMostProcessor = 128;
constexpr int kMostThreads = 65536;
constexpr double kMostMs = 1e9;

void check_time(std::string_view where, const TokenTime& time) {
  const auto milliseconds = [&](std::string_view what, double value) {  // NaN fails the comparison too
    if (!(value >= 0 && value <= kMostMs)) refuse_profile(where, "{} {} is outside 0 to {:g}", what, value, kMostMs);
  };
  milliseconds("fixed_ms", time.fixed_ms);
  milliseconds("ms_per_1000", time.ms_per_1000);
}

}  // namespace

bool SpeedProfile::measured_like(const SpeedProfile& other) const {
  return machine() == other.machine() && tokens == other.tokens;
}

void validate(const SpeedProfile& speed, std::string_view where) {
  const auto inside = [&](std::string_view key) { return fmt::format("{}.{}", where, key); };
  check_name(where, "processor", speed.processor, kMostProcessor);
  if (speed.threads < 1 || speed.threads > kMostThreads) {
    refuse_profile(where, "threads {} is outside 1 to {}", speed.threads, kMostThreads);
  }
  try {
    parse_kv_type(speed.kv_type);
  } catch (const UserError& error) {
    refuse_profile(inside("kv_type"), "{}", error.what());
  }
  if (speed.tokens < 1 || speed.tokens > kMaxTokens) {
    refuse_profile(where, "tokens {} is outside 1 to {}", speed.tokens, kMaxTokens);
  }
  check_time(inside("dense"), speed.dense);
  check_time(inside("verify"), speed.verify);
  if (speed.methods.size() > kMaxKept) {
    refuse_profile(inside("methods"), "{} rows; give {} at most", speed.methods.size(), kMaxKept);
  }
  std::set<std::tuple<std::string_view, std::string_view, std::string_view>> seen;
  for (std::size_t i = 0; i < speed.methods.size(); ++i) {
    const MethodTime& row = speed.methods[i];
    const std::string at = inside(fmt::format("methods[{}]", i));
    check_row_name(at, row.method, row.budget, row.options);
    check_time(at, row.time);
    if (seen.emplace(row.method, row.budget, row.options).second) continue;
    refuse_profile(at, "{} at {} is given twice", row.method, row.budget);
  }
}

std::string explain(const SpeedProfile& speed) {
  std::string text =
      fmt::format("speed      ms a token on '{}', {} thread{}, {} cache; contexts of {} tokens\n", speed.processor,
                  speed.threads, speed.threads == 1 ? "" : "s", speed.kv_type, speed.tokens);
  const auto line = [&](std::string_view what, std::string_view budget, const TokenTime& time) {
    text += fmt::format("           {:<24}{:<12}{:>9.2f} and {:.3f} for each 1,000 tokens\n", what, budget,
                        time.fixed_ms, time.ms_per_1000);
  };
  line("full", "", speed.dense);
  line(fmt::format("{} drafts verified", kVerifiedDrafts), "", speed.verify);
  for (const MethodTime& row : speed.methods) line(row.method, row.budget, row.time);
  return text;
}

}  // namespace glimpse::plan
