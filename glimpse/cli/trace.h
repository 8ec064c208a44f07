// A trace read back and checked: the tokens, and for each decode step what every (layer, KV head) read. A value type;
// the functions may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "glimpse/plan/plan.h"

namespace glimpse::cli {

struct TraceHead {
  static constexpr std::int32_t kAll = -1;
  plan::RoleKind role = plan::RoleKind::dense;
  std::int32_t list = kAll;        ///< index into Trace::lists; kAll: every token up to the step's position
  std::int64_t tokens = 0;         ///< positions read
  std::optional<double> coverage;  ///< softmax mass captured
};

struct TraceStep {
  std::int64_t position = 0;     ///< of the token whose query attended
  std::vector<TraceHead> heads;  ///< [layer, kv_head]
  std::int64_t bytes_read = 0;   ///< of K, V and indices
  std::int64_t index_bytes = 0, dense_bytes = 0;
};

struct Trace {
  std::string source, policy, budget, kv_type;  ///< the command; budget is empty where the plan has none
  plan::ModelShape shape;                       ///< without the context
  std::int64_t row_bytes = 0;                   ///< K and V of one token in one layer and KV head
  std::int64_t prompt_tokens = 0;
  std::vector<std::string> tokens;  ///< texts by position, UTF-8; the last one may have come out and not been fed
  std::vector<TraceStep> steps;
  std::vector<std::string> lists;  ///< distinct sets of positions, by encode_positions
};

/// True for a file that begins as a trace does, also one of before traces had headers.
bool looks_like_trace(const std::string& path);

/// Throws UserError with the line for what is damaged, cut off or contradicts itself.
Trace read_trace(const std::string& path);

}  // namespace glimpse::cli
