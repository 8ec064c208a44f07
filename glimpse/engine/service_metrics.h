// What a Service counts, for the metrics of a server. Values; any thread, each value on one at a time.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>

#include "glimpse/engine/engine.h"

namespace glimpse::engine {

using TimePoint = std::chrono::steady_clock::time_point;

inline double seconds_between(TimePoint from, TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

/// Times in fixed buckets.
struct Histogram {
  /// The longest time of each bucket, seconds; the last bucket, behind them, has what is longer.
  static constexpr std::array<double, 18> kEnds{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5,
                                                1,     2,     5,     10,   20,   50,   100, 200, 500};
  std::array<std::int64_t, kEnds.size() + 1> counts{};
  std::int64_t count = 0;  ///< of all buckets
  double sum_s = 0;

  void add(double seconds) {
    ++counts[static_cast<std::size_t>(std::lower_bound(kEnds.begin(), kEnds.end(), seconds) - kEnds.begin())];
    ++count;
    sum_s += seconds;
  }
  /// Seconds; 0 of nothing.
  double mean() const { return count > 0 ? sum_s / static_cast<double>(count) : 0; }
};

struct ServiceMetrics {
  TimePoint began, at;                     ///< of the service, and of this snapshot
  std::int64_t queued = 0, running = 0;    ///< now: not yet with the engine, and with it
  std::int64_t submitted = 0;              ///< those taken into the queue
  std::int64_t refused = 0;                ///< those that found it full
  std::array<std::int64_t, 8> finished{};  ///< by FinishReason, which has no more words
  /// Of finished requests: their prompts' tokens, and how many of those were there already.
  std::int64_t prompt_tokens = 0, reused_tokens = 0;
  std::int64_t prefix_queried = 0, prefix_found = 0;  ///< of those tokens: looked for among kept prefixes, and found
  std::int64_t generated_tokens = 0;
  std::int64_t pages_used = 0, pages_total = 0;  ///< of the KV cache, after the last pass; kept prefixes use none
  std::int64_t preemptions = 0;                  ///< requests that gave their pages back for a while, each time
  std::int64_t failed_passes = 0;                ///< that ended for all requests at once
  Histogram queue;                               ///< from submit to the first pass with the request's prompt
  Histogram first_token;                         ///< from submit
  Histogram between_tokens;                      ///< of one request
  Histogram decode_pass, chunk_pass;             ///< passes that only decoded, and those with a chunk of a prompt

  std::int64_t ended_as(FinishReason reason) const { return finished.at(static_cast<std::size_t>(reason)); }
};

}  // namespace glimpse::engine
