// When the requests of `bench serve` come, how long they are and by which method they are answered: drawn from a seed,
// or read from a file. Values; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "glimpse/cli/arguments.h"
#include "glimpse/cli/arm.h"

namespace glimpse::cli {

struct PlannedArrival {
  double at_s = 0;  ///< after the start
  std::int64_t prompt_tokens = 0, tokens = 0;
  Arm arm;
};

/// In the order in which they come. --arrivals FILE has a line {"at", "prompt_tokens", "tokens", "attn"} for each;
/// else --requests, --rate (the first comes at once), --prompt-tokens, -n and --arms, in turn, make them. Throws
/// UserError that names the flag, or the file and the line.
std::vector<PlannedArrival> planned_arrivals(const Arguments& arguments);

}  // namespace glimpse::cli
