// Requests that arrive over time, served by engine::Service, by a plain loop of engine steps, and one by one:
// latencies, tokens a second, and whether the answers are the same. One thread calls all of it; the engine has no other
// requests.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "glimpse/engine/engine.h"

namespace glimpse::evaluate {

using engine::Token;

/// A request to come. Its answer is greedy and has all its tokens, whatever the model says of its end.
struct Arrival {
  double at_s = 0;  ///< after the start; arrivals are in this order
  std::string arm;
  plan::Plan plan;
  std::vector<Token> prompt;
  std::int64_t tokens = 0;
};

/// What became of one. Times in seconds.
struct Served {
  double queue_s = 0;              ///< from its arrival to the first pass with its prompt
  std::vector<double> token_s;     ///< [tokens] after its arrival
  std::vector<std::int64_t> pass;  ///< [tokens] number of the pass that gave it
  std::vector<Token> tokens;
  std::string error;  ///< of one that failed
};

struct ServingRun {
  std::vector<Served> requests;  ///< [arrivals]
  double tokens_per_s = 0;       ///< of all, from the first arrival to the last token
  double decode_pass_s = 0;      ///< the mean pass that only decoded; 0: there was none
  double chunk_pass_s = 0;       ///< the mean pass with a chunk of a prompt
  std::int64_t preemptions = 0;  ///< how often a request gave its pages back for a while
};

struct ServingOptions {
  int running = 8;  ///< requests in the engine at a time
  /// Called now and then with the requests of the run that have ended; false stops it.
  std::function<bool(std::int64_t done)> go_on;
};

/// Through a Service. These return none when they were stopped, and throw UserError for a request that the engine
/// refuses.
std::optional<ServingRun> serve(engine::Engine& engine, std::span<const Arrival> arrivals,
                                const ServingOptions& options);
/// The same arrivals by hand: submit, step, take results on one thread. Only `tokens_per_s` and the tokens are filled.
std::optional<ServingRun> serve_by_hand(engine::Engine& engine, std::span<const Arrival> arrivals,
                                        const ServingOptions& options);
/// The tokens of each alone, one after the other.
std::optional<std::vector<std::vector<Token>>> serve_alone(engine::Engine& engine, std::span<const Arrival> arrivals,
                                                           const ServingOptions& options);

/// The smallest of the values that `share` of them do not exceed, 0 for none.
double percentile(std::vector<double> values, double share);

/// Of all requests of one arm, over all runs.
struct ServingRow {
  std::string arm;
  std::int64_t requests = 0, failed = 0;
  double first_p50_s = 0, first_p99_s = 0;      ///< to the first token, from the arrival
  double between_p50_s = 0, between_p99_s = 0;  ///< between two tokens of a request
  double longest_wait_s = 0;                    ///< between two tokens of a request
  std::int64_t longest_wait_passes = 0;         ///< 1: each pass gave it a token
  double tokens_per_s = 0;                      ///< the arm's share of its runs' tokens a second, the median
  std::int64_t as_alone = 0;                    ///< requests whose tokens are those of `alone`
};

/// A row for each arm in the order of arrivals, and one for all of them, "all".
std::vector<ServingRow> serving_rows(std::span<const Arrival> arrivals, std::span<const ServingRun> runs,
                                     std::span<const std::vector<Token>> alone);

}  // namespace glimpse::evaluate
