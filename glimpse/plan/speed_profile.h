// How long a decoded token takes, by method and context length, as calibration measured it on one machine: plain data
// of a profile. Value types; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace glimpse::plan {

/// A line through what was measured at two lengths. Milliseconds, 0 or more.
struct TokenTime {
  double fixed_ms = 0;
  double ms_per_1000 = 0;  ///< for each 1,000 tokens of context
  double at(std::int64_t tokens) const { return fixed_ms + ms_per_1000 * static_cast<double>(tokens) / 1000; }
  friend bool operator==(const TokenTime&, const TokenTime&) = default;
};

/// The same of a row of Profile::kept, by its method, budget and options.
struct MethodTime {
  std::string method, budget, options;
  TokenTime time;
  friend bool operator==(const MethodTime&, const MethodTime&) = default;
};

/// Drafts that are verified in the pass of SpeedProfile::verify.
inline constexpr int kVerifiedDrafts = 4;

/// What times hold for.
struct SpeedMachine {
  std::string processor;  ///< the CPU's name or the GPU's, as the system has it; printable ASCII
  int threads = 0;        ///< of the CPU, 1 or more; 1 where the processor is a GPU
  std::string kv_type;    ///< "bf16": of the cache
  friend bool operator==(const SpeedMachine&, const SpeedMachine&) = default;
};

struct SpeedProfile {
  std::string processor;  ///< as SpeedMachine's
  int threads = 0;
  std::string kv_type;
  std::int64_t tokens = 0;  ///< of prompt and answer that rows of Profile::kept were measured in
  TokenTime dense;          ///< a decoded token of dense attention
  TokenTime verify;         ///< a dense pass over kVerifiedDrafts tokens and the one that starts them
  std::vector<MethodTime> methods;

  SpeedMachine machine() const { return {processor, threads, kv_type}; }
  /// True where both were measured on the same machine in prompts of the same length.
  bool measured_like(const SpeedProfile& other) const;
  friend bool operator==(const SpeedProfile&, const SpeedProfile&) = default;
};

/// Throws UserError with the first thing that is wrong: "profile: speed...", `where` being its key.
void validate(const SpeedProfile& speed, std::string_view where = "speed");

/// Lines for `glimpse inspect`: the machine, and each time.
std::string explain(const SpeedProfile& speed);

}  // namespace glimpse::plan
